// Rows tell the microbatch of an op, heads that of a border. A border of a microbatch that is left
// out must be as the same one of microbatch 2, in its slot or in one of the caller's that is its
// own.
#include "armillary/plan/step/repeat.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

/// The microbatch that others repeat, and the first of these.
constexpr int kBody = 2;
constexpr int kFirstRepeat = kBody + 1;
constexpr int kNone = -1;

class MicrobatchFold {
 public:
  MicrobatchFold(const StepTables& tables, const RankProgram& program)
      : program_(program),
        microbatches_(tables.shape().microbatches),
        left_out_(microbatches_ - kProvedMicrobatches),
        rows_(2 * tables.units()) {}

  FoldedProgram fold() {
    FoldedProgram folded;
    folded.fault = fault();
    if (!folded.fault) fill(folded);
    return folded;
  }

 private:
  /// The microbatch of a border; kNone for other tiles.
  static int microbatch_of(const Tile& tile) {
    const bool is_border = tile.tensor == StepTensor::X || tile.tensor == StepTensor::Dx;
    return is_border ? tile.heads.begin : kNone;
  }
  bool repeats(int microbatch) const {
    return microbatch >= kFirstRepeat && microbatch < microbatches_ - 1;
  }
  /// Not in the folded program, which has one that repeats.
  bool is_left_out(int microbatch) const {
    return microbatch > kFirstRepeat && microbatch < microbatches_ - 1;
  }
  int folded_microbatch(int microbatch) const {
    return microbatch > kFirstRepeat ? microbatch - left_out_ : microbatch;
  }

  std::optional<int> fault() {
    if (!are_tiles() || !are_borders() || !are_inputs()) return -1;
    if (const auto op = cut()) return op;
    for (int m = kFirstRepeat; repeats(m); ++m) {
      const std::span body = ops_of(kBody);
      const std::span ops = ops_of(m);
      const auto [first, other] = std::ranges::mismatch(
          body, ops, [&](const Op& a, const Op& b) { return is_repeated(a, b, m - kBody); });
      if (first == body.end() && other == ops.end()) continue;
      return begins_[m] + static_cast<int>(other - ops.begin());
    }
    return std::nullopt;
  }

  /// Tiles are in slots that are there, and ids are those of tiles.
  bool are_tiles() const {
    const auto has = [&](int id) { return id >= 0 && id < std::ssize(program_.tiles); };
    return std::ranges::all_of(program_.tiles,
                               [&](const Tile& tile) {
                                 return tile.slot >= 0 && tile.slot < std::ssize(program_.slots);
                               }) &&
           std::ranges::all_of(program_.inputs, has) &&
           std::ranges::all_of(program_.outputs, has) && std::ranges::all_of(program_.saved, has);
  }

  /// Each microbatch that repeats has the borders of the body.
  bool are_borders() {
    std::map<std::tuple<bool, int, int>, int> ids;  // By gradient or not, border and microbatch.
    std::vector<int> in_slot(program_.slots.size());
    std::vector<int> borders(microbatches_);
    const auto key = [](const Tile& tile, int m) {
      return std::tuple(tile.tensor == StepTensor::Dx, static_cast<int>(tile.blocks.front()), m);
    };
    for (int id = 0; id < std::ssize(program_.tiles); ++id) {
      const Tile& tile = program_.tiles[id];
      ++in_slot[tile.slot];
      const bool is_border = tile.tensor == StepTensor::X || tile.tensor == StepTensor::Dx;
      if (!is_border) continue;
      const int m = tile.heads.begin;
      if (m < 0 || m >= microbatches_ || tile.heads.count() != 1) return false;
      if (tile.blocks.size() != 1 || !ids.emplace(key(tile, m), id).second) return false;
      ++borders[m];
    }
    like_.assign(program_.tiles.size(), kNone);
    for (int id = 0; id < std::ssize(program_.tiles); ++id) {
      const Tile& tile = program_.tiles[id];
      const int m = microbatch_of(tile);
      if (m == kNone || !repeats(m)) continue;
      const auto body = ids.find(key(tile, kBody));
      if (body == ids.end()) return false;
      const Tile& model = program_.tiles[body->second];
      const bool external = program_.slots[tile.slot].external;
      const bool own = program_.slots[model.slot].external && in_slot[tile.slot] == 1;
      const bool placed = external ? own && tile.slot != model.slot : tile.slot == model.slot;
      if (!placed || tile.partial != model.partial || tile.narrow != model.narrow) return false;
      like_[id] = body->second;
    }
    for (int m = kFirstRepeat; repeats(m); ++m) {
      if (borders[m] != borders[kBody]) return false;
    }
    return true;
  }

  /// The caller gives border 0 of all microbatches in order, and takes none.
  bool are_inputs() const {
    int next = 0;
    for (const int id : program_.inputs) {
      const Tile& tile = program_.tiles[id];
      if (microbatch_of(tile) == kNone) continue;
      const bool is_first = tile.tensor == StepTensor::X && tile.blocks.front() == 0;
      if (!is_first || microbatch_of(tile) != next++) return false;
    }
    const auto is_other = [&](int id) { return microbatch_of(program_.tiles[id]) == kNone; };
    return next == microbatches_ && std::ranges::all_of(program_.outputs, is_other) &&
           std::ranges::all_of(program_.saved, is_other);
  }

  /// Finds where each microbatch begins, and the end of the step. Returns an op that is not in the
  /// rows of its microbatch, if there is one.
  std::optional<int> cut() {
    const std::vector<Op>& ops = program_.ops;
    begins_.assign(microbatches_ + 2, static_cast<int>(ops.size()));
    int now = -1;
    for (int i = 0; i < std::ssize(ops); ++i) {
      const int m = ops[i].step < 0 ? -1 : std::min(ops[i].step / rows_, microbatches_);
      if (m < 0 || m < now) return i;
      while (now < m) begins_[++now] = i;
      for (const View& view : ops[i].views) {
        if (view.tile < 0 || view.tile >= std::ssize(program_.tiles)) return i;
        const int of = microbatch_of(program_.tiles[view.tile]);
        if (of != kNone && (of != m || view.heads != program_.tiles[view.tile].heads)) return i;
      }
    }
    return std::nullopt;
  }

  std::span<const Op> ops_of(int m) const {
    return std::span(program_.ops).subspan(begins_[m], begins_[m + 1] - begins_[m]);
  }

  /// Whether `b`, so many microbatches later, does what `a` of the body does.
  bool is_repeated(const Op& a, const Op& b, int later) const {
    const bool same = a.kind == b.kind && a.lane == b.lane && a.step + later * rows_ == b.step &&
                      a.peer == b.peer && a.collective == b.collective && a.init == b.init &&
                      a.zero_copy == b.zero_copy;
    return same && std::equal(a.views.begin(), a.views.end(), b.views.begin(), b.views.end(),
                              [&](const View& left, const View& right) {
                                const int like = like_[right.tile];
                                if (like == kNone) return left == right;
                                // cut() has seen that both show the heads of their tiles.
                                return like == left.tile && left.blocks == right.blocks;
                              });
  }

  void fill(FoldedProgram& folded) const {
    RankProgram& result = folded.program;
    result.words = program_.words;
    result.rank = program_.rank;
    result.groups = program_.groups;
    std::vector<bool> drops(program_.slots.size());
    for (std::size_t id = 0; id < program_.tiles.size(); ++id) {
      const Tile& tile = program_.tiles[id];
      if (!is_left_out(microbatch_of(tile))) continue;
      if (program_.tiles[like_[id]].slot != tile.slot) drops[tile.slot] = true;
    }
    std::vector<int> slots;  // By slot of the whole program; so are tiles.
    for (std::size_t slot = 0; slot < drops.size(); ++slot) {
      slots.push_back(static_cast<int>(result.slots.size()));
      if (!drops[slot]) result.slots.push_back(program_.slots[slot]);
    }
    std::vector<int> tiles;
    for (Tile tile : program_.tiles) {
      const int m = microbatch_of(tile);
      tiles.push_back(static_cast<int>(result.tiles.size()));
      if (is_left_out(m)) continue;
      tile.slot = slots[tile.slot];
      if (m != kNone) tile.heads = {folded_microbatch(m), folded_microbatch(m) + 1};
      result.tiles.push_back(std::move(tile));
    }
    for (const auto ids : {&RankProgram::inputs, &RankProgram::outputs, &RankProgram::saved}) {
      for (const int id : program_.*ids) {
        if (!is_left_out(microbatch_of(program_.tiles[id]))) (result.*ids).push_back(tiles[id]);
      }
    }
    for (int i = 0; i < std::ssize(program_.ops); ++i) {
      if (is_left_out(program_.ops[i].step / rows_)) continue;
      Op op = program_.ops[i];
      if (op.step / rows_ > kFirstRepeat) op.step -= left_out_ * rows_;
      for (View& view : op.views) {
        view.tile = tiles[view.tile];
        const Tile& tile = result.tiles[view.tile];
        if (microbatch_of(tile) != kNone) view.heads = tile.heads;
      }
      result.ops.push_back(std::move(op));
      folded.ops.push_back(i);
    }
  }

  const RankProgram& program_;
  const int microbatches_;
  const int left_out_;
  const int rows_;           ///< In a microbatch.
  std::vector<int> like_;    ///< By tile: the border of the body that it repeats, or kNone.
  std::vector<int> begins_;  ///< By microbatch, then the end and behind it: the first op.
};

}  // namespace

FoldedProgram without_repeats(const StepTables& tables, const RankProgram& program) {
  ARMILLARY_CHECK(tables.shape().microbatches > kProvedMicrobatches);
  return MicrobatchFold(tables, program).fold();
}

int folded_row(const StepTables& tables, int row) {
  const int rows = 2 * tables.units();
  const int left_out = std::max(tables.shape().microbatches - kProvedMicrobatches, 0);
  const int m = row / rows;
  if (m <= kFirstRepeat) return row;
  return m < kFirstRepeat + left_out ? kFirstRepeat * rows + row % rows : row - left_out * rows;
}

}  // namespace armillary::plan::step
