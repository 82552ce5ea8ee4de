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

/// Hash of a sequence: its tokens, labels and documents as int64, one list after the other.
std::string hash_of(const Sequence& sequence);

/// A checkpoint on the disk. It reads checkpoints of any world. Threads: any number may read.
class Checkpoint {
 public:
  /// Opens a folder and checks all but the values of the tensors. @throws IoError that names the
  /// file, and the tensor if there is one, for a file that is missing, cut off or changed.
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

  /// Values of a tensor; valid as long as this object.
  /// @throws IoError if there is no such tensor, or it is not one of this dtype and shape.
  std::span<const std::byte> bytes(const io::TensorInfo& wanted) const;

 private:
  // Steps of the constructor; each compares what it reads with the manifest.
  void open_part(const ManifestFile& file);
  void read_recipe(const ManifestFile& file);
  void check_tensor(const ManifestTensor& tensor) const;

  std::string path_;
  Manifest manifest_;
  std::string recipe_;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;  ///< By name.
  std::map<std::string, const io::SafetensorsFile*> parts_;            ///< By tensor.
};

}  // namespace armillary::train
