#include "armillary/plan/verify/classes.h"

#include <array>
#include <utility>

#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan::verifier {
namespace {

/// Adds the borders of `more`.
void unite(std::vector<char>& borders, const std::vector<char>& more) {
  for (std::size_t i = 0; i < borders.size(); ++i) {
    if (more[i] != 0) borders[i] = 1;
  }
}

/// Gives every owner the borders of all owners, and one at its first block.
void repeat(std::vector<char>& borders, int per_owner) {
  std::vector<char> of_owner(per_owner, 0);
  of_owner[0] = 1;
  for (std::size_t i = 0; i < borders.size(); ++i) {
    if (borders[i] != 0) of_owner[i % per_owner] = 1;
  }
  for (std::size_t i = 0; i < borders.size(); ++i) borders[i] = of_owner[i % per_owner];
}

/// The numbers at which tiles and views of one side begin and end.
struct Borders {
  std::vector<char> heads;
  std::vector<char> blocks;

  void add(const Heads& range, const BlockIds& ids) {
    heads[range.begin] = heads[range.end] = 1;
    for (const IdRun& run : ids.runs()) blocks[run.first] = blocks[run.last + 1] = 1;
  }
  void add(const Borders& more) {
    unite(heads, more.heads);
    unite(blocks, more.blocks);
  }
};

}  // namespace

// The class of a number is the last one that began at or before it.
Classes::Classes(const std::vector<char>& borders) {
  const int n = static_cast<int>(borders.size()) - 1;
  for (int i = 0; i <= n; ++i) {
    if (borders[i] != 0 || i == 0 || i == n) begins_.push_back(i);
    class_of_.push_back(static_cast<int>(begins_.size()) - 1);
  }
}

// Each rank collects its own borders; then they are united in the order of the ranks. Index 0 is
// the query side, index 1 the key side.
Sides sides_of(const Plan& plan, const Fold* fold) {
  using Both = std::array<Borders, 2>;
  const Both none{Borders{std::vector<char>(plan.problem.heads + 1),
                          std::vector<char>(plan.blocks.q.size() + 1)},
                  Borders{std::vector<char>(plan.problem.kv_heads + 1),
                          std::vector<char>(plan.blocks.kv.size() + 1)}};
  std::vector<Both> of_rank(plan.ranks.size());
  parallel_for_ranks(static_cast<int>(plan.ranks.size()), [&](Rank rank) {
    const RankProgram& program = plan.ranks[rank];
    Both borders = none;
    for (const Tile& tile : program.tiles) {
      borders[is_kv(tile.tensor) ? 1 : 0].add(tile.heads, tile.blocks);
    }
    for (const Op& op : program.ops) {
      for (const View& view : op.views) {
        const Tile& tile = program.tiles[view.tile];
        if (!is_whole(tile, view)) borders[is_kv(tile.tensor) ? 1 : 0].add(view.heads, view.blocks);
      }
    }
    of_rank[rank] = std::move(borders);
  });
  Both all = none;
  for (const Both& borders : of_rank) {
    for (const std::size_t side : {0, 1}) all[side].add(borders[side]);
  }
  for (const std::size_t side : {0, 1}) {
    if (fold != nullptr) repeat(all[side].blocks, fold->blocks_per_rank(side == 1));
  }
  return {.q = {Classes(all[0].heads), Classes(all[0].blocks)},
          .kv = {Classes(all[1].heads), Classes(all[1].blocks)}};
}

}  // namespace armillary::plan::verifier
