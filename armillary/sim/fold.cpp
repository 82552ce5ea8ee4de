#include "armillary/sim/fold.h"

namespace armillary::sim {
namespace {

/// True if one rotation of the ranks adds `shift` to every number, modulo the world.
bool rotates_by(const plan::Fold& alike, int shift) {
  const plan::Fold::Rotation rotation = alike.rotation_to(shift);
  for (plan::Rank rank = 0; rank < alike.world(); ++rank) {
    if (alike.rotated(rank, rotation) != (rank + shift) % alike.world()) return false;
  }
  return true;
}

}  // namespace

Fold fold_of(const plan::Problem& problem, const plan::Fold* alike, const Topology& topology) {
  const Fold none{.world = problem.world, .classes = problem.world};
  const plan::Mask& mask = problem.mask;
  if (alike == nullptr || !mask.shows_all()) return none;
  for (int shift = 1; shift < problem.world; ++shift) {
    if (problem.world % shift != 0 || !rotates_by(*alike, shift)) continue;
    if (!topology.rotated(shift).empty()) return {.world = problem.world, .classes = shift};
  }
  return none;
}

}  // namespace armillary::sim
