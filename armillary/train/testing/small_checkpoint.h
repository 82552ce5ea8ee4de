// small_checkpoint.h: a state of a few tensors that is another one in each step, and checkpoints
// of it, for tests without a model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "armillary/io/file_system.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/write.h"

namespace armillary::train {

class SmallState {
 public:
  explicit SmallState(std::int64_t step) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      std::vector<float>& values = values_.emplace_back(kSizes[i]);
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] = static_cast<float>(step) + static_cast<float>(10 * i + j) / 64;
      }
    }
  }

  std::vector<SavedTensor> tensors() const {
    std::vector<SavedTensor> tensors;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto size = static_cast<std::int64_t>(kSizes[i]);
      tensors.emplace_back(
          io::TensorBytes{{"parameters/t" + std::to_string(i), io::TensorDtype::F32, {size}},
                          std::as_bytes(std::span(values_[i]))});
    }
    return tensors;
  }

 private:
  inline static const std::vector<std::size_t> kSizes{5, 1, 0, 9, 3};
  std::vector<std::vector<float>> values_;
};

inline RunProgress progress_at(std::int64_t step) {
  return {.step = step, .sequences_read = 2 * step, .last_sequence = "x", .vocab_size = 257};
}

/// Saves SmallState(step) as `world` ranks do, one after the other.
inline void save_small(io::FileSystem& files, const std::string& folder, std::int64_t step,
                       int world, std::int64_t keep = 0) {
  const SmallState state(step);
  WritePlace place{.folder = folder, .step = step, .rank = 0, .world = world};
  for (place.rank = 0; place.rank < world; ++place.rank) {
    write_part(files, place, share_of(state.tensors(), place.rank, world));
  }
  place.rank = 0;
  publish(files, place, progress_at(step), "the recipe of step " + std::to_string(step), keep);
}

/// Whether a checkpoint is whole and holds SmallState of its step.
inline bool holds_its_state(const Checkpoint& checkpoint) {
  for (int rank = 0; rank < 3; ++rank) checkpoint.verify(rank, 3);
  const std::int64_t step = checkpoint.manifest().progress.step;
  if (checkpoint.manifest().progress != progress_at(step)) return false;
  if (checkpoint.recipe() != "the recipe of step " + std::to_string(step)) return false;
  const SmallState state(step);
  for (const SavedTensor& tensor : state.tensors()) {
    if (!std::ranges::equal(checkpoint.bytes(tensor.info), tensor.bytes)) return false;
  }
  return true;
}

}  // namespace armillary::train
