// Arithmetic of digits. A rotation is applied digit by digit, so it commutes with all others and,
// apart from the one that adds nothing, leaves no rank in its place.
#include "armillary/plan/fold.h"

#include <algorithm>
#include <utility>

namespace armillary::plan {
namespace {

/// True if every rank owns equally many neighbouring blocks, and its i-th block has as many tokens
/// as the i-th of rank 0.
bool alike_by_owner(const std::vector<Block>& blocks, int world) {
  if (blocks.empty() || blocks.size() % world != 0) return false;
  const int per_rank = static_cast<int>(blocks.size()) / world;
  for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
    if (blocks[b].owner != b / per_rank) return false;
    if (blocks[b].tokens() != blocks[b % per_rank].tokens()) return false;
  }
  return true;
}

}  // namespace

Fold::Fold(const Rotations& rotations) : rotations_(rotations) {
  for (const int size : rotations_.digits) world_ *= size;
  for (Rank rank = 0; rank < world_; ++rank) {
    const Rotation rotation = rotation_to(rank);
    if (std::all_of(rotation.begin(), rotation.end(), [](int by) { return by == 0; })) {
      representatives_.push_back(rank);
    }
  }
}

std::optional<Fold> Fold::find(const Problem& problem, const Blocks& blocks,
                               const Visibility& visibility, const Rotations& rotations) {
  if (rotations.generators.empty() || !visibility.complete()) return std::nullopt;
  if (!alike_by_owner(blocks.q, problem.world) || !alike_by_owner(blocks.kv, problem.world)) {
    return std::nullopt;
  }
  Fold fold(rotations);
  if (fold.world_ != problem.world || fold.classes() == problem.world) return std::nullopt;
  fold.q_blocks_ = static_cast<int>(blocks.q.size()) / problem.world;
  fold.kv_blocks_ = static_cast<int>(blocks.kv.size()) / problem.world;
  return fold;
}

int Fold::class_of(Rank rank) const {
  const Rank least = rotated(rank, inverse(rotation_to(rank)));
  return static_cast<int>(
      std::lower_bound(representatives_.begin(), representatives_.end(), least) -
      representatives_.begin());
}

// The first digit of each entry is its rotation, for it is 0 in a representative.
Fold::Rotation Fold::rotation_to(Rank rank) const {
  Rotation rotation;
  for (const std::vector<int>& digits : rotations_.generators) {
    int unit = 1;
    for (int d = 0; d < digits.front(); ++d) unit *= rotations_.digits[d];
    rotation.push_back(rank / unit % rotations_.digits[digits.front()]);
  }
  return rotation;
}

Fold::Rotation Fold::inverse(Rotation rotation) const {
  for (std::size_t t = 0; t < rotation.size(); ++t) {
    const int size = rotations_.digits[rotations_.generators[t].front()];
    rotation[t] = (size - rotation[t]) % size;
  }
  return rotation;
}

Rank Fold::rotated(Rank rank, const Rotation& rotation) const {
  Rank moved = rank;
  for (std::size_t t = 0; t < rotation.size(); ++t) {
    if (rotation[t] == 0) continue;
    for (const int index : rotations_.generators[t]) {
      int unit = 1;
      for (int d = 0; d < index; ++d) unit *= rotations_.digits[d];
      const int size = rotations_.digits[index];
      const int digit = rank / unit % size;
      moved += unit * ((digit + rotation[t]) % size - digit);
    }
  }
  return moved;
}

// The lowest digit that is rotated decides: ranks stay neighbours until it wraps around or begins
// again. Higher digits change only where it begins again.
int Fold::moved_together(Rank first, const Rotation& rotation) const {
  int unit = 1;
  for (int d = 0; d < static_cast<int>(rotations_.digits.size()); ++d) {
    const int size = rotations_.digits[d];
    for (std::size_t t = 0; t < rotation.size(); ++t) {
      const std::vector<int>& digits = rotations_.generators[t];
      if (rotation[t] == 0 || std::find(digits.begin(), digits.end(), d) == digits.end()) continue;
      const int place = first % (unit * size);
      const int wraps = unit * (size - rotation[t]);
      return place < wraps ? wraps - place : unit * size - place;
    }
    unit *= size;
  }
  return std::max(world_ - first, 1);  // A mutant may name a rank that does not exist.
}

BlockIds Fold::rotated(Tensor tensor, const BlockIds& blocks, const Rotation& rotation) const {
  const int per_rank = blocks_per_rank(is_kv(tensor));
  std::vector<IdRun> moved;
  for (const IdRun& run : blocks.runs()) {
    for (int first = run.first; first <= run.last;) {
      const Rank owner = first / per_rank;
      const int end = std::min(run.last + 1, (owner + moved_together(owner, rotation)) * per_rank);
      const int to = rotated(owner, rotation) * per_rank + first % per_rank;
      moved.push_back({to, to + end - first - 1});
      first = end;
    }
  }
  std::sort(moved.begin(), moved.end(),
            [](const IdRun& a, const IdRun& b) { return a.first < b.first; });
  BlockIds ids;
  for (const IdRun& run : moved) ids.append(run);
  return ids;
}

RankProgram Fold::rotated(RankProgram program, const Rotation& rotation) const {
  program.rank = rotated(program.rank, rotation);
  for (Op& op : program.ops) {
    if (op.is_comm()) op.peer = rotated(op.peer, rotation);
    for (View& view : op.views) {
      view.blocks = rotated(program.tiles[view.tile].tensor, view.blocks, rotation);
    }
  }
  for (Tile& tile : program.tiles) tile.blocks = rotated(tile.tensor, tile.blocks, rotation);
  return program;
}

RankProgram Fold::absolute(RankProgram program, Rank rank) const {
  return rotated(std::move(program), rotation_to(rank));
}

// Neighbouring messages of one batch and kind are sorted by peer; those to one peer keep their
// order.
RankProgram Fold::relative(RankProgram program) const {
  const Rotation back = inverse(rotation_to(program.rank));
  program = rotated(std::move(program), back);
  for (auto first = program.ops.begin(); first != program.ops.end();) {
    const auto end = std::find_if(first, program.ops.end(), [&](const Op& op) {
      return !op.is_comm() || op.kind != first->kind || op.lane != first->lane ||
             op.step != first->step;
    });
    std::stable_sort(first, end, [](const Op& a, const Op& b) { return a.peer < b.peer; });
    first = end == first ? first + 1 : end;
  }
  return program;
}

}  // namespace armillary::plan
