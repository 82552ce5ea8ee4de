// step_meaning.h: the run of a step on types, action by action. Internal to check_step.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/program/check.h"
#include "armillary/plan/step/step_values.h"
#include "armillary/plan/step/types.h"

namespace armillary::plan::step {

/// The tiles of all ranks. Requires programs that pass the rules of the machine, `caller` and
/// `shards`. The first fault ends a run: nothing may be called after it.
class StepMeaning {
 public:
  StepMeaning(const World& world, const StepTables& tables, Diagnostics& diagnostics);

  /// Runs a compute op, or all parts of a joint op.
  void run(std::span<const Action> parts);
  /// The rules about the end.
  void check_end();

 private:
  /// An operand of an op, and its cells.
  struct Shown {
    const Action* at = nullptr;
    const Tile* tile = nullptr;
    View view;
    TypedCells cells;
  };

  void fault(const Action& at, std::string_view rule, const std::string& text);
  Shown operand(const Action& at, std::size_t v);
  bool expect_there(const Shown& shown, const TypedCell& cell);
  const RankProgram& program(const Action& at) const { return world_.ranks[at.rank]; }
  const Op& op(const Action& at) const { return program(at).ops[at.op]; }
  std::string name(const Shown& shown, const TypedCell& cell) const;
  int unit_of(const Shown& shown) const { return tables_.parts()[shown.view.blocks.front()].unit; }

  // Operands, by what the op does to them.
  Shown read(const Action& at, std::size_t v);
  /// Only the own shard has to be there.
  Shown read_own(const Action& at, std::size_t v);
  Shown write(const Action& at, std::size_t v);
  Shown update(const Action& at, std::size_t v);
  /// Adds a term to a sum, partial along `axes`.
  void add_term(const Shown& sum, const TypedCell& cell, std::size_t term, AxisSet axes);

  // Demands. Each is false, with a diagnostic, if it is not met.
  bool complete(const Shown& shown, const TypedCell& cell);
  bool complete(const Shown& shown);
  bool whole_old_weight(const Shown& weight);
  bool next_border(const Shown& from, const Shown& to);
  bool uses_nothing(const Shown& x);

  // Kinds of ops.
  void run_forward(const Action& at);
  void run_forward_plain(const Action& at);
  void run_backward_plain(const Action& at);
  void run_loss(const Action& at);
  void run_backward(const Action& at);
  void run_release(const Action& at);
  void run_norm(const Action& at);
  void run_update(const Action& at);
  void run_move(const Action& at);

  // Kinds of joint ops, with the axes of their group.
  std::vector<Shown> read_all(std::span<const Action> parts, std::size_t v);
  /// The axes are those of the shards of the unit that the first rank shows.
  bool over_replicas(const Shown& first, AxisSet axes);
  /// The cells are alike on all ranks, and their terms partial along `axes`; of each microbatch
  /// there are all terms or none.
  bool summable(const std::vector<Shown>& sums, AxisSet axes);
  bool summable(const Shown& sum, const TypedCell& cell, AxisSet axes);
  bool alike(const Shown& sum, const Shown& model);
  /// No term is to come.
  bool has_all_terms(const Shown& sum);
  bool shows_all(const Shown& shown, bool all);
  Heads all_shards(const Shown& shown) const { return tables_.all_shards(unit_of(shown)); }
  void run_gather(std::span<const Action> parts, AxisSet axes);
  void run_gather_in_place(std::span<const Action> parts, AxisSet axes);
  /// The own shard of a rank, whose values are updated or whose gradients are summed over `axes`.
  bool gathers_legally(const Shown& all, AxisSet axes);
  bool is_summed_over(const Shown& sum, const TypedCell& cell, AxisSet axes);
  void run_all_reduce(std::span<const Action> parts, AxisSet axes);
  void run_norm_sum(const std::vector<Shown>& norms, AxisSet axes);
  void run_reduce_scatter(std::span<const Action> parts, AxisSet axes);
  void run_reduce_in_place(std::span<const Action> parts, AxisSet axes);

  const World& world_;
  const StepTables& tables_;
  Diagnostics& diagnostics_;
  std::vector<TypedTiles> memory_;  ///< By rank.
  std::map<std::vector<Rank>, AxisSet> axes_by_group_;
};

}  // namespace armillary::plan::step
