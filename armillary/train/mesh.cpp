// mesh.cpp: an axis that nothing divides work along is refused. Its ranks would all do the same
// work, and the run would look right.
#include "armillary/train/mesh.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::train {

void check_built(const MeshShape& shape) {
  if (shape.pp == 1) return;
  fail<InvalidArgument>("mesh: pp {}, an axis that is not built yet; 1 is required; nearest: pp 1",
                        shape.pp);
}

void check_batch(const MeshShape& shape, const TrainingOptions& training) {
  const std::int64_t local = training.local_batch_size;
  if (local != 1) {
    fail<InvalidArgument>(
        "recipe: training.local_batch_size = {}, sequences of a dp rank in one pass; 1 is "
        "required, "
        "others are not built yet; nearest: training.global_batch_size = {}, as this key was "
        "called "
        "before",
        local, local);
  }
  const std::int64_t all = training.global_batch_size;
  if (all % shape.dp == 0) return;
  fail<InvalidArgument>(
      "recipe: training.global_batch_size = {} on {} ranks along dp; a multiple of {} is required; "
      "nearest: {}",
      all, shape.dp, shape.dp, std::max<std::int64_t>(all / shape.dp, 1) * shape.dp);
}

}  // namespace armillary::train
