// Reading of checkpoints. The manifest is the measure of everything else, and has its own hash. A
// file is compared with it by its size and its front first, so that a tensor is only looked for in
// a file whose header is the one that was written.
#include "armillary/train/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/io/content_hash.h"
#include "armillary/io/mapped_file.h"
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
  fail<IoError>("checkpoint: {} was changed in its first {}: hash {}; {} is required", path,
                count_of(file.front_bytes, "byte"), io::content_hash(front), file.front_hash);
}

}  // namespace

std::string hash_of(const Sequence& sequence) {
  std::vector<std::int64_t> numbers = sequence.tokens;
  numbers.insert(numbers.end(), sequence.labels.begin(), sequence.labels.end());
  numbers.insert(numbers.end(), sequence.documents.begin(), sequence.documents.end());
  return io::content_hash(std::as_bytes(std::span(numbers)));
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
    parts_[tensor.info.name] = files_.at(tensor.file).get();
    check_tensor(tensor);
  }
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
  const io::TensorInfo& info = parts_.at(tensor.info.name)->info(tensor.info.name);
  ARMILLARY_CHECK(info.dtype == tensor.info.dtype && info.shape == tensor.info.shape);
}

void Checkpoint::verify(int rank, int world) const {
  // Shares are cut by bytes, as for writing, so that ranks take about as long as each other.
  std::vector<io::TensorBytes> all;
  std::map<std::string, const ManifestTensor*> by_name;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    all.push_back({tensor.info, bytes(tensor.info)});
    by_name[tensor.info.name] = &tensor;
  }
  for (const io::TensorBytes& tensor : share_of(all, rank, world)) {
    const std::string& name = tensor.info.name;
    const io::SafetensorsFile& part = *parts_.at(name);
    const std::string found = io::content_hash(tensor.bytes);
    if (found == by_name.at(name)->hash) continue;
    fail<IoError>(
        "checkpoint: {}: tensor '{}' of {} at byte {} was changed: hash {}; {} is required; "
        "nearest: remove the folder and resume from the checkpoint before it",
        part.path(), name, count_of(tensor.bytes.size(), "byte"), part.offset(name), found,
        by_name.at(name)->hash);
  }
}

std::span<const std::byte> Checkpoint::bytes(const io::TensorInfo& wanted) const {
  // Names, dtypes and shapes are those of the model that asks: no tensor is converted or cut.
  const auto part = parts_.find(wanted.name);
  if (part == parts_.end()) {
    fail<IoError>("checkpoint: {} has no tensor '{}'; a checkpoint of this model is required",
                  path_, wanted.name);
  }
  const io::TensorInfo& info = part->second->info(wanted.name);
  if (info.dtype != wanted.dtype || info.shape != wanted.shape) {
    fail<IoError>("checkpoint: {}: tensor '{}' is {} [{}]; {} [{}] is required",
                  part->second->path(), wanted.name, to_string(info.dtype),
                  fmt::join(info.shape, ","), to_string(wanted.dtype),
                  fmt::join(wanted.shape, ","));
  }
  return part->second->bytes(wanted.name);
}

}  // namespace armillary::train
