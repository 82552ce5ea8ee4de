// grid_program.cpp: forward and backward of any grid, from the axes it is made of.
#include <algorithm>
#include <functional>
#include <utility>

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/head_exchange.h"

namespace armillary::plan {
namespace {

constexpr Lane kColumnLane = 1;
constexpr Lane kColumnBackLane = 2;
constexpr Lane kRowLane = 3;
constexpr Lane kRowBackLane = 4;

/// What forward and backward of one rank share.
class GridProgram {
 public:
  GridProgram(const Problem& problem, const Blocks& blocks, const Needs& needs, const Grid& grid,
              Rank rank)
      : problem_(problem),
        needs_(needs),
        grid_(grid),
        place_(place_of(grid, rank)),
        builder_(problem, blocks, rank),
        heads_(builder_, problem, blocks, needs, grid, rank),
        column_(builder_, column_options()),
        row_(builder_, row_options()) {}

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
  int saved(Tensor tensor) {
    const bool whole = tensor == Tensor::Out || tensor == Tensor::Lse;
    return builder_.saved(tensor, heads_.group_heads(tensor, place_.h),
                          whole ? heads_.super_block(tensor) : heads_.used_blocks(tensor));
  }
  void schedule(int start, int row_departure);
  void for_each_pair(const std::vector<Held>& rows, const std::vector<Held>& columns,
                     const std::function<void(int step, const Held& row, const Held& column,
                                              std::vector<int> q, std::vector<int> kv)>& attend);
  void finish_forward(int step, const Held& own);
  void finish_backward(int row_step, int column_step, int dq_sum, const Held& own_column);

  const Problem& problem_;
  const Needs& needs_;
  Grid grid_;
  Place place_;
  ProgramBuilder builder_;
  HeadExchange heads_;
  Axis column_;
  Axis row_;
  Axis::Ready row_ready_;     ///< Step in which a member has attended to all keys with a row tile.
  Axis::Ready column_ready_;  ///< Step in which it has met a column tile with all queries.
};

Axis::Options GridProgram::column_options() {
  Axis::Options options{.movement = grid_.column,
                        .back = grid_.column,
                        .n = grid_.rq,
                        .me = place_.i,
                        .lane = kColumnLane,
                        .back_lane = kColumnBackLane,
                        .heads = heads_.group_heads(Tensor::K, place_.h)};
  options.rank = [this](int i) { return rank_of(grid_, Place{place_.h, i, place_.j}); };
  options.blocks = [this](int i) { return std::cref(needs_.kv_blocks(i, place_.j)); };
  options.needs = [this](int i, int block) { return needs_.row_needs(i, block); };
  return options;
}

/// Results go straight to their owner, also in a ring (TokenRing).
Axis::Options GridProgram::row_options() {
  Axis::Options options{.movement = grid_.row,
                        .back = Movement::Gather,
                        .n = grid_.rk,
                        .me = place_.j,
                        .lane = kRowLane,
                        .back_lane = kRowBackLane,
                        .heads = heads_.group_heads(Tensor::Q, place_.h)};
  options.rank = [this](int j) { return rank_of(grid_, Place{place_.h, place_.i, j}); };
  options.blocks = [this](int j) { return std::cref(needs_.q_blocks(place_.i, j)); };
  options.needs = [this](int j, int block) { return needs_.column_needs(j, block); };
  return options;
}

/// Fixes, for all members alike, when tiles have met all that they meet. `start`: first step that
/// computes; tiles of the columns leave then, those of the rows at `row_departure`.
void GridProgram::schedule(int start, int row_departure) {
  const int last_column = start + column_.last_usable();
  const int last_row = grid_.rk == 1 ? start : row_departure + row_.last_usable();
  row_ready_ = [=, this](int member, int origin) {
    const int arrival = usable(grid_.row, grid_.rk, member, origin);
    return std::max(member == origin ? start : row_departure + arrival, last_column);
  };
  column_ready_ = [=, this](int member, int origin) {
    return std::max(start + usable(grid_.column, grid_.rq, member, origin), last_row);
  };
}

/// Calls `attend` for every pair of tiles that see each other, in the order of steps in which both
/// are there, with the blocks of each that see one of the other.
void GridProgram::for_each_pair(
    const std::vector<Held>& rows, const std::vector<Held>& columns,
    const std::function<void(int, const Held&, const Held&, std::vector<int>, std::vector<int>)>&
        attend) {
  for (const Held& row : rows) {
    for (const Held& column : columns) {
      std::vector<int> q_blocks;
      std::vector<int> kv_blocks;
      for (const int q : row.needed) {
        if (std::any_of(column.needed.begin(), column.needed.end(),
                        [&](int kv) { return needs_.visible(q, kv); })) {
          q_blocks.push_back(q);
        }
      }
      for (const int kv : column.needed) {
        if (std::any_of(q_blocks.begin(), q_blocks.end(),
                        [&](int q) { return needs_.visible(q, kv); })) {
          kv_blocks.push_back(kv);
        }
      }
      attend(std::max(row.usable, column.usable), row, column, std::move(q_blocks),
             std::move(kv_blocks));
    }
  }
}

RankProgram GridProgram::forward() {
  // Phase 1: heads for tokens. K and V first: their way is longer.
  const int k_home = home_input(Tensor::K);
  const int v_home = home_input(Tensor::V);
  const int q_home = home_input(Tensor::Q);
  const int k = heads_.to_grid(0, k_home);
  const int v = heads_.to_grid(1, v_home);
  const int q = heads_.to_grid(2, q_home);
  for (const int tile : {q, k, v}) builder_.save(tile);
  const int start = grid_.u == 1 ? 0 : 3;

  // Phase 2: everything new meets everything held.
  schedule(start, start);
  std::vector<Held> columns = column_.spread({Tensor::K, Tensor::V}, {k, v}, start, start);
  std::vector<Held> rows = row_.spread({Tensor::Q}, {q}, start, start);
  row_.open_sums(rows, {Tensor::Out, Tensor::Lse}, row_ready_);
  for_each_pair(
      rows, columns,
      [&](int step, const Held& row, const Held& column, const std::vector<int>& q_blocks,
          const std::vector<int>& kv_blocks) {
        builder_.compute(
            step, OpKind::Attend,
            {builder_.part(row.tiles[0], q_blocks), builder_.part(column.tiles[0], kv_blocks),
             builder_.part(column.tiles[1], kv_blocks), builder_.part(row.sums[0], q_blocks),
             builder_.part(row.sums[1], q_blocks)});
      });

  // Phase 3: partials go home. Phase 4: tokens for heads.
  const int complete = row_.collect(rows, row_ready_);
  finish_forward(complete, rows[0]);
  return builder_.finish();
}

void GridProgram::finish_forward(int step, const Held& own) {
  const Heads heads = heads_.group_heads(Tensor::Out, place_.h);
  const auto result = [&](Tensor tensor, bool wanted_home) {
    if (grid_.u == 1 && wanted_home) return home_output(tensor);
    return builder_.tile(tensor, false, heads, heads_.super_block(tensor));
  };
  const int out = result(Tensor::Out, true);
  const int lse = result(Tensor::Lse, problem_.return_lse);
  builder_.compute(step, OpKind::Finish,
                   {builder_.whole(out), builder_.whole(lse), builder_.whole(own.sums[0]),
                    builder_.whole(own.sums[1])});
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
  builder_.compute(start, OpKind::Delta,
                   {builder_.whole(delta), builder_.whole(dout), builder_.whole(out)});

  // Phase 2: everything new meets everything held. Delta is made in the first step, so rows leave
  // after it.
  const int row_departure = start + 1;
  schedule(start, row_departure);
  std::vector<Held> columns = column_.spread({Tensor::K, Tensor::V}, {k, v}, start, start);
  std::vector<Held> rows = row_.spread({Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta},
                                       {q, dout, lse, delta}, start, row_departure);
  row_.open_sums(rows, {Tensor::DQ}, row_ready_);
  column_.open_sums(columns, {Tensor::DK, Tensor::DV}, column_ready_);
  for_each_pair(rows, columns,
                [&](int step, const Held& row, const Held& column, const std::vector<int>& q_blocks,
                    const std::vector<int>& kv_blocks) {
                  const auto q_view = [&](int tile) { return builder_.part(tile, q_blocks); };
                  const auto kv_view = [&](int tile) { return builder_.part(tile, kv_blocks); };
                  builder_.compute(
                      step, OpKind::AttendGrad,
                      {q_view(row.tiles[0]), kv_view(column.tiles[0]), kv_view(column.tiles[1]),
                       q_view(row.tiles[1]), q_view(row.tiles[2]), q_view(row.tiles[3]),
                       q_view(row.sums[0]), kv_view(column.sums[0]), kv_view(column.sums[1])});
                });

  // Phase 3: sums go home along rows and columns. Phase 4: tokens for heads.
  const int row_step = row_.collect(rows, row_ready_);
  const int column_step = column_.collect(columns, column_ready_);
  finish_backward(row_step, column_step, rows[0].sums[0], columns[0]);
  return builder_.finish();
}

void GridProgram::finish_backward(int row_step, int column_step, int dq_sum,
                                  const Held& own_column) {
  const int dq_home = home_output(Tensor::DQ);
  const int dk_home = home_output(Tensor::DK);
  const int dv_home = home_output(Tensor::DV);
  if (grid_.u == 1) {
    builder_.compute(row_step, OpKind::Copy, {builder_.whole(dq_home), builder_.whole(dq_sum)});
    for (const auto& [home, sum] :
         {std::pair(dk_home, own_column.sums[0]), std::pair(dv_home, own_column.sums[1])}) {
      builder_.compute(column_step, OpKind::Copy, {builder_.whole(home), builder_.whole(sum)});
    }
    return;
  }
  const int dq = builder_.tile(Tensor::DQ, false, builder_[dq_sum].heads, builder_[dq_sum].blocks);
  builder_.compute(row_step, OpKind::Copy, {builder_.whole(dq), builder_.whole(dq_sum)});
  const int last = std::max(row_step, column_step);
  heads_.to_home(last + 1, dq, dq_home);
  heads_.gradients_to_home(last + 1, own_column.sums[0], dk_home);
  heads_.gradients_to_home(last + 1, own_column.sums[1], dv_home);
}

}  // namespace

RankProgram grid_program(const Problem& problem, const Blocks& blocks, const Needs& needs,
                         const Grid& grid, Pass pass, Rank rank) {
  GridProgram program(problem, blocks, needs, grid, rank);
  return pass == Pass::Forward ? program.forward() : program.backward();
}

}  // namespace armillary::plan
