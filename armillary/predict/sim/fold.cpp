// fold.cpp: the smallest shift by which both the programs and the topology map to themselves. Ranks
// that differ by it are alike, so only the first `shift` are simulated.
#include "armillary/predict/sim/fold.h"

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

ShiftFold fold_of(int world, const plan::Fold* alike, const Topology& topology) {
  const ShiftFold none{.world = world, .classes = world};
  if (alike == nullptr) return none;
  for (int shift = 1; shift < world; ++shift) {
    if (world % shift != 0 || !rotates_by(*alike, shift)) continue;
    if (!topology.rotated(shift).empty()) return {.world = world, .classes = shift};
  }
  return none;
}

}  // namespace armillary::sim
