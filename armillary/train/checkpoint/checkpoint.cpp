// Reading of checkpoints. The manifest is the measure of everything else, and has its own hash. A
// file is compared with it by its size and its front first, so that a tensor is only looked for in
// a file whose header is the one that was written.
#include "armillary/train/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"
#include "armillary/io/mapped_file.h"
#include "armillary/train/checkpoint/cover.h"
#include "armillary/train/checkpoint/write.h"

namespace armillary::train {
namespace {

/// Bytes as text, which the caller keeps alive.
std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Compares the front of a file with the manifest.
void check_front(const std::string& path, const ManifestFile& file,
                 std::span<const std::byte> front) {
  if (static_cast<std::int64_t>(front.size()) == file.front_bytes &&
      io::content_hash(front) == file.front_hash) {
    return;
  }
  fail<IoError>("checkpoint: {} was changed in its first {}: hash {}; {} is required",
                excerpt(path), count_of(file.front_bytes, "byte"), io::content_hash(front),
                file.front_hash);
}

/// Copies the elements that two ranges of one whole have in common; returns how many.
std::int64_t copy_overlap(const model::GlobalRange& from, std::span<const std::byte> source,
                          const model::GlobalRange& to, std::span<std::byte> target) {
  const model::GlobalRange both = model::overlap_of(from, to);
  const std::int64_t count = model::count_of_values(both.size);
  if (count == 0) return 0;
  const auto element = source.size() / static_cast<std::size_t>(model::count_of_values(from.size));
  model::for_each_row(both, [&](std::int64_t global, std::int64_t /*local*/, std::int64_t length) {
    std::memcpy(
        target.data() + static_cast<std::size_t>(model::local_index(to, global)) * element,
        source.data() + static_cast<std::size_t>(model::local_index(from, global)) * element,
        static_cast<std::size_t>(length) * element);
  });
  return count;
}

}  // namespace

std::string hash_of(const Sequence& sequence) {
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  for (const auto& [name, values] : sequence.fields) {
    const at::Tensor whole = values.contiguous();
    add({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  }
  add(std::as_bytes(std::span(sequence.documents)));
  return io::content_hash(bytes);
}

std::uint64_t digest_of(const Sequence& sequence) {
  return std::stoull(hash_of(sequence).substr(0, 16), nullptr, 16) | 1;
}

Checkpoint::Checkpoint(std::string path) : path_(std::move(path)) {
  const std::string manifest_path = path_ + "/" + kManifestName;
  const io::MappedFile manifest("checkpoint", manifest_path);
  manifest_ = parse_manifest(manifest_path, text_of(manifest.bytes()));
  for (const ManifestFile& file : manifest_.files) {
    if (file.name == kRecipeName) {
      read_recipe(file);
    } else {
      open_part(file);
    }
  }
  for (const ManifestTensor& tensor : manifest_.tensors) {
    // The manifest names the file of a tensor; the header of that file has its place.
    shards_[tensor.info.name].push_back(&tensor);
    check_tensor(tensor);
  }
  for (const auto& [name, shards] : shards_) check_cover(path_, shards);
}

void Checkpoint::read_recipe(const ManifestFile& file) {
  const std::string path = path_ + "/" + file.name;
  const io::MappedFile mapped("checkpoint", path);
  check_front(path, file, mapped.bytes());
  recipe_ = text_of(mapped.bytes());
}

void Checkpoint::open_part(const ManifestFile& file) {
  auto part = std::make_unique<io::SafetensorsFile>(path_ + "/" + file.name);
  check_front(part->path(), file, part->header());
  files_[file.name] = std::move(part);
}

// A header that hashes right is the one from which the manifest was made.
void Checkpoint::check_tensor(const ManifestTensor& tensor) const {
  const io::TensorInfo& info = file_of(tensor).info(tensor.info.name);
  ARMILLARY_CHECK(info.dtype == tensor.info.dtype && info.shape == tensor.info.shape);
}

const io::SafetensorsFile& Checkpoint::file_of(const ManifestTensor& tensor) const {
  return *files_.at(tensor.file);
}

void Checkpoint::verify(int rank, int world) const {
  // Shares are cut by bytes, as for writing, so that ranks take about as long as each other.
  std::vector<SavedTensor> all;
  all.reserve(manifest_.tensors.size());
  for (const ManifestTensor& tensor : manifest_.tensors) {
    all.push_back({{tensor.info, file_of(tensor).bytes(tensor.info.name)}, tensor.range});
  }
  for (const SavedTensor& tensor : share_of(all, rank, world)) {
    const std::string& name = tensor.info.name;
    const auto& shards = shards_.at(name);
    const auto shard = std::ranges::find_if(
        shards, [&](const ManifestTensor* one) { return one->range == tensor.range; });
    const std::string text = io::content_hash(tensor.bytes);
    if (text == (*shard)->hash) continue;
    const io::SafetensorsFile& part = file_of(**shard);
    fail<IoError>(
        "checkpoint: {}: tensor '{}' of {} at byte {} was changed: hash {}; {} is required; "
        "nearest: remove the folder and resume from the checkpoint before it",
        excerpt(part.path()), name, count_of(tensor.bytes.size(), "byte"), part.offset(name), text,
        (*shard)->hash);
  }
}

void Checkpoint::read(const std::string& name, io::TensorDtype dtype,
                      const model::GlobalRange& range, std::span<std::byte> to) const {
  // Names, dtypes and shapes are those of the model that asks: no tensor is converted or cut.
  const auto entry = shards_.find(name);
  if (entry == shards_.end()) {
    fail<IoError>("checkpoint: {} has no tensor '{}'; a checkpoint of this model is required",
                  excerpt(path_), name);
  }
  std::int64_t copied = 0;
  for (const ManifestTensor* shard : entry->second) {
    if (shard->info.dtype != dtype || shard->range.whole != range.whole) {
      fail<IoError>("checkpoint: {}: tensor '{}' is {} [{}]; {} [{}] is required",
                    excerpt(file_of(*shard).path()), name, to_string(shard->info.dtype),
                    fmt::join(shard->range.whole, ","), to_string(dtype),
                    fmt::join(range.whole, ","));
    }
    copied += copy_overlap(shard->range, file_of(*shard).bytes(name), range, to);
  }
  ARMILLARY_CHECK(copied == model::count_of_values(range.size));
}

std::vector<io::TensorInfo> Checkpoint::tensors() const {
  std::vector<io::TensorInfo> tensors;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    if (shards_.at(tensor.info.name).front() != &tensor) continue;  // once each
    tensors.push_back({tensor.info.name, tensor.info.dtype, tensor.range.whole});
  }
  return tensors;
}

std::vector<std::byte> Checkpoint::bytes(const io::TensorInfo& info) const {
  std::vector<std::byte> values(static_cast<std::size_t>(info.bytes()));
  read(info.name, info.dtype, model::whole_of(info.shape), values);
  return values;
}

}  // namespace armillary::train
