// Writing of checkpoints. Order on the disk: parts and their folder entries, recipe, manifest, the
// rename; each is synced before the next may rely on it. The hashes travel from the rank that has
// the values to the one that writes the manifest in the headers of the parts.
#include "armillary/train/checkpoint/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "armillary/io/content_hash.h"
#include "armillary/proof/digest.h"
#include "armillary/train/checkpoint/folder.h"

namespace armillary::train {
namespace {

/// Folder of the checkpoint after the rename.
std::string final_path(const WritePlace& place) {
  return place.folder + "/" + checkpoint_name(place.step);
}

/// Folder in which it is written.
std::string temporary_path(const WritePlace& place) {
  return final_path(place) + kTemporary;
}

std::string part_name(int rank, int world) {
  return fmt::format("part-{:05}-of-{:05}.safetensors", rank, world);
}

/// Key of a range in the metadata of a part, beside that of the hash.
std::string range_key(const std::string& name) {
  return name + " range";
}

/// A range as text, "[[begins], [sizes of the whole]]", and back.
std::string text_of(const model::GlobalRange& range) {
  return nlohmann::json({range.begin, range.whole}).dump();
}
model::GlobalRange range_of_text(const std::string& text, const model::Shape& size) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {.whole = json.at(1).get<model::Shape>(),
          .begin = json.at(0).get<model::Shape>(),
          .size = size};
}

/// Lists a part by its header, which has the hashes.
void add_part(Manifest& manifest, const std::string& folder, const std::string& name) {
  const io::SafetensorsFile part(folder + "/" + name);
  const auto front = part.header();
  std::int64_t bytes = static_cast<std::int64_t>(front.size());
  for (const io::TensorInfo& info : part.tensors()) {
    bytes += info.bytes();
    const auto range = part.metadata().find(range_key(info.name));
    manifest.tensors.push_back({.info = info,
                                .range = range == part.metadata().end()
                                             ? model::whole_of(info.shape)
                                             : range_of_text(range->second, info.shape),
                                .file = name,
                                .hash = part.metadata().at(info.name)});
  }
  manifest.files.push_back({.name = name,
                            .bytes = bytes,
                            .front_bytes = static_cast<std::int64_t>(front.size()),
                            .front_hash = io::content_hash(front)});
}

}  // namespace

std::vector<SavedTensor> share_of(const std::vector<SavedTensor>& tensors, int rank, int world) {
  // A tensor belongs to the rank whose share of all bytes holds its middle. Bytes are doubled so
  // that the middle is a whole number.
  std::int64_t total = 0;
  for (const SavedTensor& tensor : tensors) total += tensor.info.bytes();
  std::vector<SavedTensor> share;
  std::int64_t begin = 0;
  for (const SavedTensor& tensor : tensors) {
    const double middle = static_cast<double>(2 * begin + tensor.info.bytes());
    const double all = static_cast<double>(std::max<std::int64_t>(2 * total, 1));
    const int owner = std::min(static_cast<int>(middle / all * world), world - 1);
    if (owner == rank) share.push_back(tensor);
    begin += tensor.info.bytes();
  }
  return share;
}

void Snapshot::take(const std::vector<SavedTensor>& tensors) {
  std::size_t total = 0;
  for (const SavedTensor& tensor : tensors) total += tensor.bytes.size();
  if (total > capacity_) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(total);
    capacity_ = total;
  }
  tensors_ = tensors;
  std::byte* to = memory_.get();
  for (SavedTensor& tensor : tensors_) {
    if (!tensor.bytes.empty()) std::memcpy(to, tensor.bytes.data(), tensor.bytes.size());
    tensor.bytes = {to, tensor.bytes.size()};
    to += tensor.bytes.size();
  }
}

void write_part(io::FileSystem& files, const WritePlace& place,
                const std::vector<SavedTensor>& tensors) {
  io::TensorMetadata hashes;
  for (const SavedTensor& tensor : tensors) {
    hashes[tensor.info.name] = io::content_hash(tensor.bytes);
    if (!tensor.range.is_whole()) hashes[range_key(tensor.info.name)] = text_of(tensor.range);
  }
  // Every rank makes the folder, whichever is first; one that is there is no error.
  const std::string folder = temporary_path(place);
  files.make_folder(folder);
  io::write_safetensors(files, folder + "/" + part_name(place.rank, place.world),
                        {tensors.begin(), tensors.end()}, hashes);
}

void publish(io::FileSystem& files, const WritePlace& place, const RunProgress& progress,
             const std::string& recipe, std::int64_t keep) {
  const std::string temporary = temporary_path(place);
  Manifest manifest{
      .version = std::string(proof::version()), .world = place.world, .progress = progress};
  // Parts are listed from the disk, not from memory: only their headers are read.
  for (int rank = 0; rank < place.world; ++rank) {
    add_part(manifest, temporary, part_name(rank, place.world));
  }
  io::write_synced(files, temporary + "/" + kRecipeName, recipe);
  manifest.files.push_back({.name = kRecipeName,
                            .bytes = static_cast<std::int64_t>(recipe.size()),
                            .front_bytes = static_cast<std::int64_t>(recipe.size()),
                            .front_hash = io::content_hash(recipe)});
  io::write_synced(files, temporary + "/" + kManifestName, to_text(manifest));
  files.sync_folder(temporary);

  // A folder of this name can only be one without a manifest: a run resumes from the newest whole
  // one, and then goes on to later steps.
  io::remove_tree(files, final_path(place));
  // From here on readers find it.
  files.rename(temporary, final_path(place));
  files.sync_folder(place.folder);
  keep_newest(files, place.folder, keep);
}

}  // namespace armillary::train
