// grid_program.cpp: forward and backward of any grid, from the axes it is made of.
#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/head_exchange.h"

namespace armillary::plan {
namespace {

constexpr Lane kColumnLane = 1;
constexpr Lane kColumnBackLane = 2;
constexpr Lane kRowLane = 3;
constexpr Lane kRowBackLane = 4;

/// Of a tile of the row and one of the column, the blocks that see one of the other.
struct Seen {
  BlockIds q_blocks;
  BlockIds kv_blocks;
};

/// Called for tiles that see each other, with the query heads that read the column's KV heads.
struct Pair {
  int step;
  const Held& row;
  const Held& column;
  Heads q_heads;
  const Seen& seen;
};

/// What forward and backward of one rank share.
class GridProgram {
 public:
  GridProgram(const Problem& problem, const Blocks& blocks, const Needs& needs, const Grid& grid,
              const GridRoutes& routes, Rank rank)
      : problem_(problem),
        needs_(needs),
        grid_(grid),
        routes_(routes),
        place_(place_of(grid, rank)),
        builder_(problem, blocks, rank),
        heads_(builder_, problem, blocks, needs, grid, rank),
        row_(builder_, row_options()),
        column_(builder_, column_options()) {
    ARMILLARY_CHECK(grid.u == 1 || !grid.transposed);
  }

  RankProgram forward();
  RankProgram backward();

 private:
  Axis::Options column_options();
  Axis::Options row_options();
  int home_input(Tensor tensor) {
    return builder_.input(tensor, heads_.all_heads(tensor), heads_.own_blocks(tensor));
  }
  int home_output(Tensor tensor) {
    return builder_.output(tensor, heads_.all_heads(tensor), heads_.own_blocks(tensor));
  }
  int saved(Tensor tensor);
  Heads q_heads_of(Heads kv_heads) const;

  std::vector<int> held_kv_blocks() const;
  int transpose(int step, int tile);
  void transpose_home(int step, const View& sum, int home);

  void schedule(int start, int row_departure, Pass pass);
  int last_column(int start) const;
  int turn(int usable) const;
  void spread_columns(const std::vector<int>& tiles, int start);
  std::vector<Held> spread_row(const std::vector<Tensor>& tensors, const std::vector<int>& tiles,
                               int start, int departure);
  Seen seen(const Held& row, const Held& column) const;
  void for_each_pair(const std::vector<Held>& rows, const std::function<void(const Pair&)>& attend);
  void finish_forward(int step, const std::vector<Held>& rows);
  void finish_backward(int row_step, int column_step, const std::vector<Held>& rows);

  const Problem& problem_;
  const Needs& needs_;
  Grid grid_;
  const GridRoutes& routes_;
  Place place_;
  ProgramBuilder builder_;
  HeadExchange heads_;
  Axis row_;
  Axis column_;
  std::vector<std::vector<Held>> slices_;  ///< Of KV heads, on the column.
  Axis::Ready row_ready_;  ///< Step in which a member has attended to all keys with a row tile.
  /// Step in which it has met a tile of the first slice with all queries; each slice is one later.
  Axis::Ready column_ready_;
  /// Steps between the first and the last tile of the column that the last row tile meets.
  int last_meeting_ = 0;
  int last_row_ = 0;  ///< Step in which the last row tile is usable.
};

Axis::Options GridProgram::column_options() {
  Axis::Options options{.route = &routes_.column,
                        .home = &routes_.column,
                        .me = place_.i,
                        .lane = kColumnLane,
                        .back_lane = kColumnBackLane,
                        .one_call = grid_.one_call};
  options.rank = [this](int i) { return rank_of(grid_, Place{place_.h, i, place_.j}); };
  options.blocks = [this](int i) { return std::cref(needs_.held_kv_blocks(i, place_.j)); };
  options.needs = [this](int i, int block) { return needs_.row_needs(i, block); };
  return options;
}

Axis::Options GridProgram::row_options() {
  Axis::Options options{.route = &routes_.row,
                        .home = &routes_.home,
                        .me = place_.j,
                        .lane = kRowLane,
                        .back_lane = kRowBackLane,
                        .one_call = grid_.one_call};
  options.rank = [this](int j) { return rank_of(grid_, Place{place_.h, place_.i, j}); };
  options.blocks = [this](int j) { return std::cref(needs_.q_blocks(place_.i, j)); };
  options.needs = [this](int j, int block) { return needs_.column_needs(j, block); };
  return options;
}

int GridProgram::saved(Tensor tensor) {
  const bool whole = tensor == Tensor::Out || tensor == Tensor::Lse;
  return builder_.saved(tensor, heads_.group_heads(tensor, place_.h),
                        is_kv(tensor) && grid_.transposed ? held_kv_blocks()
                        : whole                           ? heads_.super_block(tensor)
                                                          : heads_.used_blocks(tensor));
}

Heads GridProgram::q_heads_of(Heads kv_heads) const {
  const Heads group = head_group(problem_, grid_, place_.h);
  return {std::max(group.begin, kv_heads.begin * problem_.group_size()),
          std::min(group.end, kv_heads.end * problem_.group_size())};
}

/// Blocks of the K, V that this rank holds when the columns begin; without those that nobody needs
/// if they came from elsewhere.
std::vector<int> GridProgram::held_kv_blocks() const {
  std::vector<int> used;
  const Place source = kv_source(grid_, place_);
  const bool own = source.i == place_.i && source.j == place_.j;
  for (const int block : needs_.held_kv_blocks(place_.i, place_.j)) {
    if (own || needs_.kv_used(block)) used.push_back(block);
  }
  return used;
}

/// K or V to the place that reads by rows as this one does by columns.
int GridProgram::transpose(int step, int tile) {
  const Place source = kv_source(grid_, place_);
  if (!grid_.transposed || (source.i == place_.i && source.j == place_.j)) return tile;
  std::vector<int> used;
  for (const int block : builder_[tile].blocks) {
    if (needs_.kv_used(block)) used.push_back(block);
  }
  const int held =
      builder_.tile(builder_[tile].tensor, false, builder_[tile].heads, held_kv_blocks());
  builder_.send(step, kColumnLane, rank_of(grid_, kv_holder(grid_, place_)),
                builder_.part(tile, used));
  builder_.recv(step, kColumnLane, rank_of(grid_, source), builder_.whole(held));
  return held;
}

/// The sum of dK or dV on this place to the owner of the tokens, in the input dtype.
void GridProgram::transpose_home(int step, const View& sum, int home) {
  const Place source = kv_source(grid_, place_);
  if (!grid_.transposed || (source.i == place_.i && source.j == place_.j)) {
    builder_.compute(step, OpKind::Copy, {builder_.part(home, sum.heads, sum.blocks), sum});
    return;
  }
  const Tensor tensor = builder_[home].tensor;
  std::vector<int> used;
  std::vector<int> unused;
  for (const int block : heads_.own_blocks(tensor)) {
    (needs_.kv_used(block) ? used : unused).push_back(block);
  }
  const int complete = builder_.tile(tensor, false, sum.heads, held_kv_blocks());
  builder_.compute(
      step, OpKind::Copy,
      {builder_.whole(complete), builder_.part(sum.tile, sum.heads, builder_[complete].blocks)});
  builder_.send(step + 1, kColumnBackLane, rank_of(grid_, source), builder_.whole(complete));
  builder_.recv(step + 1, kColumnBackLane, rank_of(grid_, kv_holder(grid_, place_)),
                builder_.part(home, sum.heads, used));
  const int zero = builder_.tile(tensor, true, sum.heads, unused);
  builder_.compute(step, OpKind::Clear, {builder_.whole(zero)});
  builder_.compute(step, OpKind::Copy,
                   {builder_.part(home, sum.heads, unused), builder_.whole(zero)});
}

int GridProgram::last_column(int start) const {
  return start + grid_.slices - 1 + routes_.column.last_usable();
}

/// Fixes, for all members alike, when tiles have met all that they meet. `start`: first step that
/// computes; tiles of the columns leave then, those of the rows at `row_departure`.
void GridProgram::schedule(int start, int row_departure, Pass pass) {
  const int last_column = this->last_column(start);
  last_row_ = grid_.rk == 1 ? start : row_departure + routes_.row.last_usable();
  const bool tile_by_tile = grid_.rows_last && grid_.rk > 1 && pass == Pass::Backward;
  last_meeting_ = tile_by_tile ? routes_.column.last_usable() : 0;
  // In one call, a gather's own tiles wait for the others.
  const auto arrival = [one_call = grid_.one_call](const Route& route, int member, int origin) {
    return one_call ? route.last_usable() : route.usable(member, origin);
  };
  row_ready_ = [=, this](int member, int origin) {
    const int arrived = arrival(routes_.row, member, origin);
    const bool last = arrived == routes_.row.last_usable();
    return std::max(arrived == 0 ? start : row_departure + arrived, last_column) +
           (last ? last_meeting_ : 0);
  };
  column_ready_ = [=, this](int member, int origin) {
    return std::max(start + arrival(routes_.column, member, origin),
                    last_row_ + turn(routes_.column.usable(member, origin)));
  };
}

/// Steps after it is there in which the last row tile meets a tile of the column, usable so long
/// after the start: in the order in which sums leave, those of the own keys last.
int GridProgram::turn(int usable) const {
  return std::min(usable == 0 ? last_meeting_ : usable - 1, last_meeting_);
}

void GridProgram::spread_columns(const std::vector<int>& tiles, int start) {
  const Heads kv = heads_.group_heads(Tensor::K, place_.h);
  for (int s = 0; s < grid_.slices; ++s) {
    slices_.push_back(column_.spread({Tensor::K, Tensor::V}, tiles, head_slice(kv, grid_.slices, s),
                                     start + s, start + s));
  }
}

std::vector<Held> GridProgram::spread_row(const std::vector<Tensor>& tensors,
                                          const std::vector<int>& tiles, int start, int departure) {
  return row_.spread(tensors, tiles, heads_.group_heads(Tensor::Q, place_.h), start, departure);
}

Seen GridProgram::seen(const Held& row, const Held& column) const {
  Seen seen;
  const auto sees = [this](int q, int kv) { return needs_.visible(q, kv); };
  for (const int q : row.blocks) {
    if (std::any_of(column.blocks.begin(), column.blocks.end(),
                    [&](int kv) { return sees(q, kv); })) {
      seen.q_blocks.push_back(q);
    }
  }
  for (const int kv : column.blocks) {
    if (std::any_of(seen.q_blocks.begin(), seen.q_blocks.end(),
                    [&](int q) { return sees(q, kv); })) {
      seen.kv_blocks.push_back(kv);
    }
  }
  return seen;
}

/// Every pair of tiles that see each other, in the step in which both are there.
void GridProgram::for_each_pair(const std::vector<Held>& rows,
                                const std::function<void(const Pair&)>& attend) {
  for (const Held& row : rows) {
    std::vector<Seen> of_column;  // slices differ in their heads alone
    for (const Held& column : slices_[0]) of_column.push_back(seen(row, column));
    for (const std::vector<Held>& slice : slices_) {
      for (std::size_t c = 0; c < slice.size(); ++c) {
        const Held& column = slice[c];
        const int usable = routes_.column.usable(place_.i, column.origins.front());
        attend({.step = std::max(row.usable, column.usable) +
                        (row.usable == last_row_ ? turn(usable) : 0),
                .row = row,
                .column = column,
                .q_heads = q_heads_of(column.heads),
                .seen = of_column[c]});
      }
    }
  }
}

RankProgram GridProgram::forward() {
  // Phase 1: heads for tokens. K and V first: their way is longer. Unless they are packed, each
  // leaves when it is projected.
  const int one = grid_.packed ? 0 : 1;
  const int k_home = home_input(Tensor::K);
  const int v_home = home_input(Tensor::V);
  const int q_home = home_input(Tensor::Q);
  const int k_own = heads_.to_grid(0, k_home);
  const int v_own = heads_.to_grid(one, v_home);
  const int q = heads_.to_grid(2 * one, q_home);
  int start = grid_.u == 1 ? 0 : 2 * one + 1;
  const int k = transpose(start, k_own);
  const int v = transpose(start, v_own);
  if (grid_.transposed) ++start;
  for (const int tile : {q, k, v}) builder_.save(tile);

  // Phase 2: everything new meets everything held.
  const int row_departure = grid_.rows_last ? last_column(start) : start;
  schedule(start, row_departure, Pass::Forward);
  spread_columns({k, v}, start);
  std::vector<Held> rows = spread_row({Tensor::Q}, {q}, start, row_departure);
  row_.open_sums(rows, {Tensor::Out, Tensor::Lse});
  for_each_pair(rows, [&](const Pair& pair) {
    const auto q_view = [&](int tile) {
      return builder_.part(tile, pair.q_heads, pair.seen.q_blocks);
    };
    const auto kv_view = [&](int tile) {
      return builder_.part(tile, pair.column.heads, pair.seen.kv_blocks);
    };
    builder_.compute(
        pair.step, OpKind::Attend,
        {q_view(pair.row.tiles[0]), kv_view(pair.column.tiles[0]), kv_view(pair.column.tiles[1]),
         q_view(pair.row.sums[0]), q_view(pair.row.sums[1])});
  });

  // Phase 3: partials go home. Phase 4: tokens for heads.
  const int complete = row_.collect(rows, row_ready_);
  finish_forward(complete, rows);
  return builder_.finish();
}

void GridProgram::finish_forward(int step, const std::vector<Held>& rows) {
  const Heads heads = heads_.group_heads(Tensor::Out, place_.h);
  const auto result = [&](Tensor tensor, bool wanted_home) {
    if (grid_.u == 1 && wanted_home) return home_output(tensor);
    return builder_.tile(tensor, false, heads, heads_.super_block(tensor));
  };
  const int out = result(Tensor::Out, true);
  const int lse = result(Tensor::Lse, problem_.return_lse);
  builder_.compute(
      step, OpKind::Finish,
      {builder_.whole(out), builder_.whole(lse), row_.own_sum(rows, 0), row_.own_sum(rows, 1)});
  builder_.save(out);
  builder_.save(lse);
  if (grid_.u == 1) return;
  heads_.to_home(step + 1, out, home_output(Tensor::Out));
  if (problem_.return_lse) heads_.to_home(step + 1, lse, home_output(Tensor::Lse));
}

RankProgram GridProgram::backward() {
  // Phase 1: dOut heads for tokens; forward left Q, K, V, Out and Lse on the grid.
  const int q = saved(Tensor::Q);
  const int k = saved(Tensor::K);
  const int v = saved(Tensor::V);
  const int out = saved(Tensor::Out);
  const int lse = saved(Tensor::Lse);
  const int dout = heads_.to_grid(0, home_input(Tensor::DOut));
  const int start = grid_.u == 1 ? 0 : 1;
  const int delta = builder_.tile(Tensor::Delta, false, builder_[out].heads, builder_[out].blocks);
  builder_.compute(
      start, OpKind::Delta,
      {builder_.whole(delta), builder_.whole(dout), builder_.whole(out), builder_.whole(lse)});

  // Phase 2: everything new meets everything held. Delta is made in the first step, so rows leave
  // after it.
  const int row_departure = std::max(start + 1, grid_.rows_last ? last_column(start) : 0);
  schedule(start, row_departure, Pass::Backward);
  spread_columns({k, v}, start);
  std::vector<Held> rows = spread_row({Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta},
                                      {q, dout, lse, delta}, start, row_departure);
  row_.open_sums(rows, {Tensor::DQ});
  for (std::vector<Held>& slice : slices_) column_.open_sums(slice, {Tensor::DK, Tensor::DV});
  for_each_pair(rows, [&](const Pair& pair) {
    const auto q_view = [&](int tile) {
      return builder_.part(tile, pair.q_heads, pair.seen.q_blocks);
    };
    const auto kv_view = [&](int tile) {
      return builder_.part(tile, pair.column.heads, pair.seen.kv_blocks);
    };
    builder_.compute(
        pair.step, OpKind::AttendGrad,
        {q_view(pair.row.tiles[0]), kv_view(pair.column.tiles[0]), kv_view(pair.column.tiles[1]),
         q_view(pair.row.tiles[1]), q_view(pair.row.tiles[2]), q_view(pair.row.tiles[3]),
         q_view(pair.row.sums[0]), kv_view(pair.column.sums[0]), kv_view(pair.column.sums[1])});
  });

  // Phase 3: sums go home along rows and columns. Phase 4: tokens for heads.
  const int row_step = row_.collect(rows, row_ready_);
  const int column_step = column_.collect(slices_, column_ready_);
  finish_backward(row_step, column_step, rows);
  return builder_.finish();
}

void GridProgram::finish_backward(int row_step, int column_step, const std::vector<Held>& rows) {
  const int dq_home = home_output(Tensor::DQ);
  const std::array<int, 2> kv_home{home_output(Tensor::DK), home_output(Tensor::DV)};
  const View dq_sum = row_.own_sum(rows, 0);
  if (grid_.u == 1) {
    builder_.compute(row_step, OpKind::Copy, {builder_.whole(dq_home), dq_sum});
    for (const std::vector<Held>& slice : slices_) {
      for (int t = 0; t < 2; ++t) {
        transpose_home(column_step, column_.own_sum(slice, t), kv_home[t]);
      }
    }
    return;
  }
  const int dq = builder_.tile(Tensor::DQ, false, dq_sum.heads, dq_sum.blocks);
  builder_.compute(row_step, OpKind::Copy, {builder_.whole(dq), dq_sum});
  const int last = std::max(row_step, column_step);
  heads_.to_home(last + 1, dq, dq_home);
  for (int t = 0; t < 2; ++t) {
    std::vector<View> sums;
    for (const std::vector<Held>& slice : slices_) sums.push_back(column_.own_sum(slice, t));
    heads_.gradients_to_home(last + 1, sums, kv_home[t]);
  }
}

}  // namespace

RankProgram grid_program(const Problem& problem, const Blocks& blocks, const Needs& needs,
                         const Grid& grid, const GridRoutes& routes, Pass pass, Rank rank) {
  GridProgram program(problem, blocks, needs, grid, routes, rank);
  return pass == Pass::Forward ? program.forward() : program.backward();
}

}  // namespace armillary::plan
