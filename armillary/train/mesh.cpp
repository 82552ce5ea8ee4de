// mesh.cpp: an axis that nothing divides work along is refused. Its ranks would all do the same
// work, and the run would look right.
#include "armillary/train/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// `4 or 6`; a choice of 0 is none.
std::string either(std::int64_t below, std::int64_t above) {
  if (below == 0) return fmt::format("{}", above);
  return above == 0 ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

/// The divisors of n next to `wish`, which is none.
std::string divisors_around(std::int64_t n, std::int64_t wish) {
  std::int64_t below = std::min(wish, n);
  while (n % below != 0) --below;
  std::int64_t above = 0;  // n / quotient, with the largest quotient that gives more than `wish`.
  for (std::int64_t quotient = n / wish; quotient > 0 && above == 0; --quotient) {
    if (n % quotient == 0) above = n / quotient;
  }
  return either(below, above);
}

}  // namespace

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
  const std::int64_t below = all / at_once * at_once;
  const std::int64_t next = below + at_once;
  const std::string nearest = either(below, below > 0 && next > kMaxBatch ? 0 : next);
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
      all % shape.dp == 0
          ? ", or training.local_batch_size = " + divisors_around(all / shape.dp, local)
          : "",
      all < at_once ? "; what earlier recipes call local_batch_size is global_batch_size" : "");
}

std::int64_t microbatches_of(const MeshShape& shape, const TrainingOptions& training) {
  return training.global_batch_size / (shape.dp * training.local_batch_size);
}

}  // namespace armillary::train
