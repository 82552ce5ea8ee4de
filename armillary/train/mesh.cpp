// mesh.cpp: an axis that nothing divides work along is refused. Its ranks would all do the same
// work, and the run would look right.
#include "armillary/train/mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::train {

void check_built(const MeshShape& shape) {
  if (shape.pp == 1) return;
  fail<InvalidArgument>("mesh: pp {}, an axis that is not built yet; 1 is required; nearest: pp 1",
                        shape.pp);
}

void check_batch(const MeshShape& shape, const TrainingOptions& training) {
  const std::int64_t all = training.global_batch_size;
  const std::int64_t local = training.local_batch_size;
  const std::int64_t at_once = shape.dp * local;
  if (all % at_once == 0) return;
  const std::int64_t nearest = std::max<std::int64_t>(all / at_once, 1) * at_once;
  if (local == 1) {
    fail<InvalidArgument>(
        "recipe: training.global_batch_size = {} on {} ranks along dp; a multiple of {} is "
        "required; nearest: {}",
        all, shape.dp, at_once, nearest);
  }
  fail<InvalidArgument>(
      "recipe: training.global_batch_size = {} on {} along dp, each with local_batch_size = {} in "
      "one pass; a multiple of {} is required; nearest: training.global_batch_size = {}{}{}",
      all, count_of(shape.dp, "rank"), local, at_once, nearest,
      all < at_once ? ", as local_batch_size was called before" : "",
      all % shape.dp == 0 ? fmt::format(", or training.local_batch_size = {}",
                                        nearest_divisor(all / shape.dp, local))
                          : "");
}

std::int64_t microbatches_of(const MeshShape& shape, const TrainingOptions& training) {
  return training.global_batch_size / (shape.dp * training.local_batch_size);
}

}  // namespace armillary::train
