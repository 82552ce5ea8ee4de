// write.h: a checkpoint is written in two phases, the second after the first is over on all ranks.
//
//   every rank   share_of its tensors --write_part-->
//   step-000020.tmp/part-00001-of-00004.safetensors rank 0       recipe.toml, manifest.json
//   --rename-->  step-000020/  --> the oldest are removed
//
// Until the rename is on the disk, readers find the checkpoints before it. Nothing here knows ranks
// of a group, threads or tensors of libtorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/io/file_system.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/checkpoint/saved_tensor.h"

namespace armillary::train {

/// The tensors that one of `world` ranks writes, all of which have them: neighbours in the list,
/// about as many bytes on every rank. The shares of all ranks are the whole list.
std::vector<SavedTensor> share_of(const std::vector<SavedTensor>& tensors, int rank, int world);

/// A copy of tensors in memory of its own, which is kept for the next copy.
class Snapshot {
 public:
  /// Copies all values. Cost: one pass over them; the first call allocates.
  void take(const std::vector<SavedTensor>& tensors);
  /// The copy of the last take().
  const std::vector<SavedTensor>& tensors() const { return tensors_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
  std::vector<SavedTensor> tensors_;
};

/// Place of a checkpoint, and the rank that writes.
struct WritePlace {
  std::string folder;  ///< The folder of all checkpoints; it is there.
  std::int64_t step = 0;
  int rank = 0;
  int world = 1;
};

/// The file of one rank, synced, with the hash of each tensor in its metadata, and the range of
/// each that is not whole.
/// @throws IoError as the file system.
void write_part(io::FileSystem& files, const WritePlace& place,
                const std::vector<SavedTensor>& tensors);

/// Makes a checkpoint of the parts of all ranks, and removes the oldest until `keep` are left.
/// @throws IoError as the file system, or if a part is not there, as in a folder that ranks do not
/// share.
void publish(io::FileSystem& files, const WritePlace& place, const RunProgress& progress,
             const std::string& recipe, std::int64_t keep);

}  // namespace armillary::train
