// grid_program.cpp: forward and backward of any grid, composed from its axes.
//
// Both passes have the phases of grid.h: heads for tokens; tiles travel along columns and rows, and
// every rank attends each row tile with each column tile once both are there; sums return; tokens
// for heads. The parts are `HeadExchange` (u axis), `KvTranspose`, two `Axis` objects (the messages
// of a column and of a row) and `GridSteps` (the steps). Slices of KV heads travel on the column
// one after the other; the row travels once, with all query heads.
#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/grid_steps.h"
#include "armillary/plan/strategies/head_exchange.h"
#include "armillary/plan/strategies/kv_transpose.h"
#include "armillary/plan/strategies/visible_blocks.h"

namespace armillary::plan {
namespace {

// Sums return on lanes of their own: a send that waits for a sum must not hold up the tiles behind
// it. The axes do not wait for each other either.
constexpr Lane kColumnLane = 1;
constexpr Lane kColumnReturnLane = 2;
constexpr Lane kRowLane = 3;
constexpr Lane kRowReturnLane = 4;

/// A tile of the row and one of the column that are attended together.
struct TilePair {
  int step;
  const Arrived& row;
  const Arrived& column;
  Heads q_heads;                 ///< Query heads that read the KV heads of the column tile.
  const VisibleBlocks& visible;  ///< Blocks of the two that see each other.
};

/// The program of one rank. An object makes one pass: call either `forward` or `backward`, once.
class GridProgram {
 public:
  GridProgram(const GridContext& context, const GridRoutes& routes, Rank rank)
      : problem_(context.problem),
        needs_(context.needs),
        grid_(context.grid),
        routes_(routes),
        place_(place_of(context.grid, rank)),
        builder_(context.problem, context.blocks, rank),
        heads_(builder_, context, rank),
        transpose_(builder_, context, rank, {.out = kColumnLane, .back = kColumnReturnLane}),
        row_(builder_, row_options()),
        column_(builder_, column_options()) {
    ARMILLARY_CHECK(grid_.u == 1 || !grid_.transposed);
  }

  RankProgram forward();
  RankProgram backward();

 private:
  AxisOptions column_options();
  AxisOptions row_options();
  int home_input(Tensor tensor) {
    return builder_.input(tensor, heads_.all_heads(tensor), heads_.own_blocks(tensor));
  }
  int home_output(Tensor tensor) {
    return builder_.output(tensor, heads_.all_heads(tensor), heads_.own_blocks(tensor));
  }
  int saved(Tensor tensor);
  Heads q_heads_of(Heads kv_heads) const;

  void spread_columns(const std::vector<int>& tiles);
  std::vector<Arrived> spread_row(const std::vector<Tensor>& tensors,
                                  const std::vector<int>& tiles);
  Axis::Ready row_ready() const {
    return [this](int member, int origin) { return steps_->row_ready(member, origin); };
  }
  void for_each_pair(const std::vector<Arrived>& rows,
                     const std::vector<std::vector<Arrived>>& slices,
                     const std::function<void(const TilePair&)>& attend);
  Axis row_axis_of_round(const Arrived& column);
  Axis column_axis_of_round(const Arrived& row);
  void attend(const std::vector<Arrived>& rows, const std::vector<std::vector<Arrived>>& slices);
  int attend_at_once(int q, const std::vector<int>& kv, std::vector<Arrived>& rows);
  int attend_in_rounds(int q, const std::vector<int>& kv, std::vector<Arrived>& rows);
  void finish_forward(int step, const std::vector<Arrived>& rows);
  void finish_backward(int row_step, int column_step, const std::vector<Arrived>& rows);

  const Problem& problem_;
  const Needs& needs_;
  Grid grid_;
  const GridRoutes& routes_;
  GridPlace place_;
  ProgramBuilder builder_;
  HeadExchange heads_;
  KvTranspose transpose_;
  Axis row_;
  Axis column_;
  std::vector<std::vector<Arrived>> slices_;  ///< Column tiles of each slice of KV heads.
  std::optional<GridSteps> steps_;            ///< Steps of the pass that is being made.
};

AxisOptions GridProgram::column_options() {
  AxisOptions options{.route = &routes_.column,
                      .return_route = &routes_.column,
                      .me = place_.i,
                      .lane = kColumnLane,
                      .return_lane = kColumnReturnLane,
                      .gathered = grid_.one_call                       ? Gathered::Whole
                                  : grid_.order == GridOrder::RowsLast ? Gathered::InParts
                                                                       : Gathered::Apart};
  options.rank = [this](int i) { return rank_of(grid_, GridPlace{place_.h, i, place_.j}); };
  options.blocks = [this](int i) { return BlockIds(needs_.held_kv_blocks(i, place_.j)); };
  options.needs = [this](int i, int block) { return needs_.row_needs(i, block); };
  return options;
}

AxisOptions GridProgram::row_options() {
  AxisOptions options{.route = &routes_.row,
                      .return_route = &routes_.home,
                      .me = place_.j,
                      .lane = kRowLane,
                      .return_lane = kRowReturnLane,
                      .gathered = grid_.one_call ? Gathered::Whole : Gathered::Apart};
  options.rank = [this](int j) { return rank_of(grid_, GridPlace{place_.h, place_.i, j}); };
  options.blocks = [this](int j) { return BlockIds(needs_.q_blocks(place_.i, j)); };
  options.needs = [this](int j, int block) { return needs_.column_needs(j, block); };
  return options;
}

/// A tile that forward saved on the grid, with the blocks that forward had there.
int GridProgram::saved(Tensor tensor) {
  const bool whole = tensor == Tensor::Out || tensor == Tensor::Lse;
  return builder_.saved(tensor, heads_.group_heads(tensor, place_.h),
                        is_kv(tensor) && grid_.transposed ? transpose_.held_blocks()
                        : whole                           ? heads_.super_block(tensor)
                                                          : heads_.used_blocks(tensor));
}

/// Query heads of this rank's head group that read the KV heads.
Heads GridProgram::q_heads_of(Heads kv_heads) const {
  const Heads group = head_group(problem_, grid_, place_.h);
  return {std::max(group.begin, kv_heads.begin * problem_.group_size()),
          std::min(group.end, kv_heads.end * problem_.group_size())};
}

void GridProgram::spread_columns(const std::vector<int>& tiles) {
  const Heads kv = heads_.group_heads(Tensor::K, place_.h);
  for (int s = 0; s < grid_.slices; ++s) {
    slices_.push_back(column_.spread({Tensor::K, Tensor::V}, tiles, head_slice(kv, grid_.slices, s),
                                     steps_->columns(s)));
  }
}

std::vector<Arrived> GridProgram::spread_row(const std::vector<Tensor>& tensors,
                                             const std::vector<int>& tiles) {
  return row_.spread(tensors, tiles, heads_.group_heads(Tensor::Q, place_.h), steps_->rows());
}

/// Calls `attend` for every pair of a row tile and a column tile, with the step in which they are
/// attended; their visible blocks may be none. If a row tile is attended with the whole column, the
/// column is one joined tile.
void GridProgram::for_each_pair(const std::vector<Arrived>& rows,
                                const std::vector<std::vector<Arrived>>& slices,
                                const std::function<void(const TilePair&)>& attend) {
  const bool gathered = grid_.order == GridOrder::RowsLast;
  std::vector<std::vector<Arrived>> whole_slices;
  for (const std::vector<Arrived>& slice : slices) {
    if (gathered) whole_slices.push_back({Axis::joined(slice)});
  }
  for (const Arrived& row : rows) {
    const auto& met = steps_->meets_whole_columns(row) ? whole_slices : slices;
    // The visible blocks are the same for all slices, which differ in their heads alone.
    std::vector<VisibleBlocks> of_column;
    for (const Arrived& column : met[0]) {
      of_column.push_back(visible_blocks(needs_, builder_, {row, column, gathered}));
    }
    for (const std::vector<Arrived>& slice : met) {
      for (std::size_t c = 0; c < slice.size(); ++c) {
        attend({.step = steps_->meet(row, slice[c]),
                .row = row,
                .column = slice[c],
                .q_heads = q_heads_of(slice[c].heads),
                .visible = of_column[c]});
      }
    }
  }
}

RankProgram GridProgram::forward() {
  // Phase 1: heads for tokens. K and V first, because they travel further. Unless packed, the three
  // leave one step apart, so that each can leave as soon as it is projected.
  const int one = grid_.packed ? 0 : 1;
  const int k_home = home_input(Tensor::K);
  const int v_home = home_input(Tensor::V);
  const int q_home = home_input(Tensor::Q);
  const int k_own = heads_.to_grid(0, k_home);
  const int v_own = heads_.to_grid(one, v_home);
  const int q = heads_.to_grid(2 * one, q_home);
  int start = grid_.u == 1 ? 0 : 2 * one + 1;
  const int k = transpose_.to_holder(start, k_own);
  const int v = transpose_.to_holder(start, v_own);
  if (grid_.transposed) ++start;
  for (const int tile : {q, k, v}) builder_.save(tile);

  // Phase 2: each arriving tile is attended with all tiles that are there. Phase 3: partial results
  // return along the row.
  steps_.emplace(
      grid_, routes_,
      GridStepsOptions{.place = place_, .pass = Pass::Forward, .start = start, .row_start = start});
  std::vector<Arrived> rows;
  const int complete =
      grid_.resend_each_round ? attend_in_rounds(q, {k, v}, rows) : attend_at_once(q, {k, v}, rows);

  // Phase 4: tokens for heads.
  finish_forward(complete, rows);
  return builder_.finish();
}

/// Emits the attention of every row tile with every column tile. Ops without blocks are dropped by
/// the builder.
void GridProgram::attend(const std::vector<Arrived>& rows,
                         const std::vector<std::vector<Arrived>>& slices) {
  for_each_pair(rows, slices, [&](const TilePair& pair) {
    const auto q_view = [&](int tile) {
      return builder_.part(tile, pair.q_heads, pair.visible.q_blocks);
    };
    const auto kv_view = [&](int tile) {
      return builder_.part(tile, pair.column.heads, pair.visible.kv_blocks);
    };
    builder_.compute(
        pair.step, OpKind::Attend,
        {q_view(pair.row.tiles[0]), kv_view(pair.column.tiles[0]), kv_view(pair.column.tiles[1]),
         q_view(pair.row.sums[0]), q_view(pair.row.sums[1])});
  });
}

/// Columns and rows travel once. Returns the step in which the rank's own partial result is
/// complete; `rows` gets the row tiles with their partial results.
int GridProgram::attend_at_once(int q, const std::vector<int>& kv, std::vector<Arrived>& rows) {
  spread_columns(kv);
  rows = spread_row({Tensor::Q}, {q});
  row_.open_sums(rows, {Tensor::Out, Tensor::Lse});
  attend(rows, slices_);
  return row_.collect(rows, row_ready());
}

/// The row axis of one round, whose keys are those of one column tile. A member needs only the
/// queries that see the keys it has in this round: fewer than in all rounds together.
Axis GridProgram::row_axis_of_round(const Arrived& column) {
  AxisOptions options = row_options();
  options.needs = [this, &column](int j, int q) {
    return std::any_of(column.origins.begin(), column.origins.end(), [&](int i) {
      const std::vector<int>& keys = needs_.held_kv_blocks(i, j);
      return std::any_of(keys.begin(), keys.end(), [&](int kv) { return needs_.visible(q, kv); });
    });
  };
  return {builder_, options};
}

/// The column axis of one round, whose queries are those of one row tile.
Axis GridProgram::column_axis_of_round(const Arrived& row) {
  AxisOptions options = column_options();
  options.needs = [this, &row](int i, int kv) {
    return std::any_of(row.origins.begin(), row.origins.end(), [&](int j) {
      const std::vector<int>& queries = needs_.q_blocks(i, j);
      return std::any_of(queries.begin(), queries.end(),
                         [&](int q) { return needs_.visible(q, kv); });
    });
  };
  return {builder_, options};
}

/// Like attend_at_once, but the inner axis travels again in every round. A round begins when a tile
/// of the outer axis is usable.
int GridProgram::attend_in_rounds(int q, const std::vector<int>& kv, std::vector<Arrived>& rows) {
  const auto departure_in_round_of = [](const Arrived& outer) {
    return Departure{.own_usable = outer.usable, .first = outer.usable, .begin = outer.usable};
  };

  // Rows outside: each row tile has its own partial result, which returns once after its round.
  if (grid_.order == GridOrder::ColumnsInside) {
    rows = spread_row({Tensor::Q}, {q});
    row_.open_sums(rows, {Tensor::Out, Tensor::Lse});
    for (const Arrived& row : rows) {
      attend({row}, {column_axis_of_round(row).spread({Tensor::K, Tensor::V}, kv,
                                                      heads_.group_heads(Tensor::K, place_.h),
                                                      departure_in_round_of(row))});
    }
    return row_.collect(rows, row_ready());
  }

  // Columns outside: the rank's own partial result is one tile for all rounds, `rows[0].sums`; the
  // partial results of other ranks' queries are new in each round.
  ARMILLARY_CHECK(grid_.order == GridOrder::RowsInside && grid_.slices == 1);
  spread_columns(kv);
  std::vector<Axis> axes;
  std::vector<std::vector<Arrived>> rounds;
  for (const Arrived& column : slices_[0]) {
    Axis& row = axes.emplace_back(row_axis_of_round(column));
    std::vector<Arrived>& arrived = rounds.emplace_back();
    arrived = row.spread({Tensor::Q}, {q}, heads_.group_heads(Tensor::Q, place_.h),
                         departure_in_round_of(column));
    if (!rows.empty()) arrived[0].sums = rows[0].sums;
    row.open_sums(arrived, {Tensor::Out, Tensor::Lse});
    attend(arrived, {{column}});
    if (rows.empty()) rows = arrived;
  }
  // Collected after all rounds are attended, so that in each step the rank's own attention stands
  // before the merges of partial results that arrive.
  int complete = 0;
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    complete = std::max(complete, axes[r].collect(rounds[r], [&](int member, int origin) {
      return slices_[0][r].usable + routes_.row.usable(member, origin);
    }));
  }
  return complete;
}

/// Turns the complete partial result into Out and Lse and saves them; with u > 1 returns them to
/// their owners.
void GridProgram::finish_forward(int step, const std::vector<Arrived>& rows) {
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
  // Phase 1: heads for tokens, of dOut alone: forward left Q, K, V, Out and Lse on the grid.
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

  // Phase 2: each arriving tile is attended with all tiles that are there. Rows leave one step
  // after the columns, because Delta is computed in the first step.
  steps_.emplace(
      grid_, routes_,
      GridStepsOptions{
          .place = place_, .pass = Pass::Backward, .start = start, .row_start = start + 1});
  spread_columns({k, v});
  std::vector<Arrived> rows =
      spread_row({Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta}, {q, dout, lse, delta});
  row_.open_sums(rows, {Tensor::DQ});
  for (std::vector<Arrived>& slice : slices_) column_.open_sums(slice, {Tensor::DK, Tensor::DV});
  for_each_pair(rows, slices_, [&](const TilePair& pair) {
    const auto q_view = [&](int tile) {
      return builder_.part(tile, pair.q_heads, pair.visible.q_blocks);
    };
    const auto kv_view = [&](int tile) {
      return builder_.part(tile, pair.column.heads, pair.visible.kv_blocks);
    };
    builder_.compute(
        pair.step, OpKind::AttendGrad,
        {q_view(pair.row.tiles[0]), kv_view(pair.column.tiles[0]), kv_view(pair.column.tiles[1]),
         q_view(pair.row.tiles[1]), q_view(pair.row.tiles[2]), q_view(pair.row.tiles[3]),
         q_view(pair.row.sums[0]), kv_view(pair.column.sums[0]), kv_view(pair.column.sums[1])});
  });

  // Phase 3: sums return along rows and columns. Phase 4: tokens for heads.
  const int row_step = row_.collect(rows, row_ready());
  const int column_step = column_.collect(
      slices_, [this](int member, int origin) { return steps_->column_ready(member, origin); });
  finish_backward(row_step, column_step, rows);
  return builder_.finish();
}

/// Rounds the complete sums to the input dtype and returns them to their owners. `row_step` and
/// `column_step` are the steps in which dQ, and dK and dV, are complete.
void GridProgram::finish_backward(int row_step, int column_step, const std::vector<Arrived>& rows) {
  const int dq_home = home_output(Tensor::DQ);
  const std::array<int, 2> kv_home{home_output(Tensor::DK), home_output(Tensor::DV)};
  const View dq_sum = row_.own_sum(rows, 0);
  if (grid_.u == 1) {
    builder_.compute(row_step, OpKind::Copy, {builder_.whole(dq_home), dq_sum});
    for (const std::vector<Arrived>& slice : slices_) {
      for (int t = 0; t < 2; ++t) {
        transpose_.to_owner(column_step, column_.own_sum(slice, t), kv_home[t]);
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
    sums.reserve(slices_.size());
    for (const std::vector<Arrived>& slice : slices_) sums.push_back(column_.own_sum(slice, t));
    heads_.gradients_to_home(last + 1, sums, kv_home[t]);
  }
}

}  // namespace

RankProgram grid_program(const GridContext& context, const GridRoutes& routes, Pass pass,
                         Rank rank) {
  GridProgram program(context, routes, rank);
  return pass == Pass::Forward ? program.forward() : program.backward();
}

}  // namespace armillary::plan
