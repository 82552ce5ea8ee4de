// checkpoint.h: a checkpoint that is read: its files mapped, its tensors by name.
//
//   newest whole folder --Checkpoint--> sizes, headers, recipe checked --verify--> every byte
//                                                                      --bytes---> values
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "armillary/io/safetensors.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/data.h"

namespace armillary::train {

/// Hash of a sequence: the values of its fields in their order, then its documents as int64.
std::string hash_of(const Sequence& sequence);
/// 64 bits of it, never 0.
std::uint64_t digest_of(const Sequence& sequence);

/// A checkpoint on the disk. It reads checkpoints of any world. Threads: any number may read.
class Checkpoint {
 public:
  /// Opens a folder and checks all but the values of the tensors. @throws IoError that names the
  /// file, and the tensor if there is one, for a file that is missing, cut off or changed; or for
  /// shards of a tensor that do not have each element once (cover.h).
  explicit Checkpoint(std::string path);

  /// The folder, as it was given.
  const std::string& path() const { return path_; }
  /// Progress, files and tensors, as they were written.
  const Manifest& manifest() const { return manifest_; }
  const std::string& recipe() const { return recipe_; }  ///< Text of recipe.toml.

  /// Hashes the values of the tensors that are rank `rank`'s of `world`, about as many bytes on
  /// every rank. @throws IoError that names file, tensor and byte of the first one that was
  /// changed. Cost: one pass over the share.
  void verify(int rank, int world) const;

  /// Copies the elements of a range of a tensor to `to`, row by row, whatever ranges its files
  /// hold.
  /// @throws IoError if there is no such tensor, or it is not one of this dtype and whole shape.
  void read(const std::string& name, io::TensorDtype dtype, const model::GlobalRange& range,
            std::span<std::byte> to) const;

  /// All tensors, whole, in the order of the manifest.
  std::vector<io::TensorInfo> tensors() const;
  /// A copy of the values of a whole tensor. @throws as read().
  std::vector<std::byte> bytes(const io::TensorInfo& info) const;

 private:
  // Steps of the constructor; each compares what it reads with the manifest.
  void open_part(const ManifestFile& file);
  void read_recipe(const ManifestFile& file);
  void check_tensor(const ManifestTensor& tensor) const;
  const io::SafetensorsFile& file_of(const ManifestTensor& tensor) const;

  std::string path_;
  Manifest manifest_;
  std::string recipe_;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;  ///< By name.
  std::map<std::string, std::vector<const ManifestTensor*>> shards_;   ///< By tensor.
};

}  // namespace armillary::train
