// The program of one rank. The runs of units are a list; the builder walks it and puts beside each
// run what the next one needs and what the one before has left. Slots of transient tiles are those
// that are free, so two of them take turns where units run one after the other.
#include "armillary/plan/step/step_program.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/types.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

constexpr Lane kGathers = 1;
constexpr Lane kSums = 2;
constexpr Lane kHost = 3;

/// One run of a unit.
struct UnitRun {
  int unit = 0;
  int microbatch = 0;
  bool backward = false;
};

std::vector<UnitRun> unit_runs(const StepTables& tables) {
  std::vector<UnitRun> runs;
  for (int m = 0; m < tables.shape().microbatches; ++m) {
    for (int unit = 0; unit < tables.units(); ++unit) runs.push_back({unit, m, false});
    for (int unit = tables.units(); unit-- > 0;) runs.push_back({unit, m, true});
  }
  return runs;
}

/// Slots for transient tiles of one tensor.
class TransientSlots {
 public:
  /// The first free slot; -1: a new one is needed, which is then given to add().
  int take() {
    for (auto& [slot, is_free] : slots_) {
      if (std::exchange(is_free, false)) return slot;
    }
    return -1;
  }
  void add(int slot) { slots_.emplace_back(slot, false); }
  void free(int slot) {
    for (auto& [other, is_free] : slots_) is_free = is_free || other == slot;
  }

 private:
  std::vector<std::pair<int, bool>> slots_;
};

class StepBuilder {
 public:
  StepBuilder(const StepTables& tables, const Measures& measures, Rank rank)
      : tables_(tables), measures_(measures), runs_(unit_runs(tables)) {
    program_.words = &step_words();
    program_.rank = rank;
    for (const AxisSet axes : tables.axis_sets()) {
      program_.groups.push_back(tables.group(axes, rank));
    }
  }

  RankProgram build() {
    add_tiles();
    for (row_ = 0; row_ < static_cast<int>(runs_.size()); ++row_) run_unit();
    // The gradients of the last run, and the sums that stand beside none.
    sum_gradients();
    gather_sums(std::exchange(reduced_, {}));
    release_sums();
    sum_over_copies();
    ++row_;
    sum(loss_, axes_of(loss_type(tables_), AxisType::Partial));
    ++row_;
    add_norm();
    ++row_;
    update();
    return std::move(program_);
  }

 private:
  // Tiles.

  int add_slot(bool external) {
    program_.slots.push_back({.bytes = 0, .external = external});
    return static_cast<int>(program_.slots.size()) - 1;
  }

  /// Adds a tile, and makes its slot large enough.
  int add_tile(Tile tile, int slot) {
    tile.slot = slot;
    std::int64_t& bytes = program_.slots[slot].bytes;
    bytes = std::max(bytes, measures_.bytes(tile));
    program_.tiles.push_back(std::move(tile));
    return static_cast<int>(program_.tiles.size()) - 1;
  }

  /// The caller's tiles, gradients that rest, and activations: a slot for each border.
  void add_tiles() {
    const Rank rank = program_.rank;
    std::vector<int> parameters;
    std::vector<int> x0;
    for (Tile& tile : input_tiles(tables_, rank)) {
      const bool is_x = tile.tensor == StepTensor::X;
      (is_x ? x0 : parameters).push_back(add_tile(std::move(tile), add_slot(true)));
      program_.inputs.push_back((is_x ? x0 : parameters).back());
    }
    program_.outputs = parameters;
    for (Tile& tile : output_tiles(tables_, rank)) {
      const bool is_loss = tile.tensor == StepTensor::Loss;
      if (!is_loss && !(tile.tensor == StepTensor::Norm)) continue;
      program_.outputs.push_back(add_tile(std::move(tile), add_slot(true)));
      (is_loss ? loss_ : norm_) = program_.outputs.back();
    }
    weight_.resize(tables_.units(), -1);
    state_.resize(tables_.units(), -1);
    grad_.resize(tables_.units(), -1);
    gathered_.resize(tables_.units(), -1);
    whole_grad_.resize(tables_.units(), -1);
    buffer_.resize(tables_.units(), -1);
    auto next = parameters.begin();
    for (int unit = 0; unit < tables_.units(); ++unit) {
      if (!has_values(unit)) continue;
      weight_[unit] = *next++;
      state_[unit] = *next++;
      grad_[unit] = add_tile(whole_tile(StepTensor::Grad, unit, grad_shards(tables_, unit, rank)),
                             add_slot(false));
    }
    for (int border = 0; border <= tables_.units(); ++border) {
      const int x_slot = border == 0 ? -1 : add_slot(false);
      const int dx_slot = add_slot(false);
      for (int m = 0; m < tables_.shape().microbatches; ++m) {
        const Tile tile{.tensor = StepTensor::X, .heads = {m, m + 1}, .blocks = {border}};
        x_[{border, m}] = border == 0 ? x0[m] : add_tile(tile, x_slot);
        Tile gradient = tile;
        gradient.tensor = StepTensor::Dx;
        dx_[{border, m}] = add_tile(std::move(gradient), dx_slot);
      }
    }
  }

  bool has_values(int unit) const { return !tables_.parts_of(unit).empty(); }
  Tile whole_tile(StepTensor tensor, int unit, const Heads& shards) const {
    return {.tensor = tensor, .heads = shards, .blocks = tables_.parts_of(unit)};
  }

  /// A transient tile of a unit, in a free slot.
  int take(StepTensor tensor, int unit, const Heads& shards, TransientSlots& pool) {
    int slot = pool.take();
    if (slot < 0) pool.add(slot = add_slot(false));
    const auto [tile, is_new] = transient_.try_emplace({slot, unit}, -1);
    if (is_new) {
      tile->second = add_tile(whole_tile(tensor, unit, shards), slot);
    }
    return tile->second;
  }

  View whole(int tile) const {
    return {tile, program_.tiles[tile].heads, program_.tiles[tile].blocks};
  }
  /// The part of a resting tile of a unit that this rank updates.
  View mine(int unit, int tile) const {
    return {tile, state_shards(tables_, unit, program_.rank), program_.tiles[tile].blocks};
  }

  // Ops.

  void add_op(StepOp kind, Views views, std::array<bool, kMostSides> init = {}) {
    program_.ops.push_back({.kind = kind, .step = row_, .init = init, .views = std::move(views)});
  }

  /// A joint op over the ranks along some axes.
  void add_joint(StepOp kind, AxisSet axes, Views views, bool begins = false) {
    const auto group = std::ranges::find(tables_.axis_sets(), axes);
    program_.ops.push_back(
        {.kind = kind,
         .lane = kind == StepOp::Gather || kind == StepOp::GatherInPlace ? kGathers : kSums,
         .step = row_,
         .peer = static_cast<int>(group - tables_.axis_sets().begin()),
         .init = {begins, false},
         .views = std::move(views)});
  }

  /// Sums a whole tile in place, unless the axes have no other ranks.
  void sum(int tile, AxisSet axes) {
    if (axes != 0) add_joint(StepOp::AllReduce, axes, {whole(tile)});
  }

  // Runs of units.

  /// The row of one run, with what stands beside it.
  void run_unit() {
    const UnitRun& run = runs_[row_];
    const bool is_last = row_ + 1 == static_cast<int>(runs_.size());
    sum_gradients();
    if (row_ == 0) gather(run.unit);
    if (!is_last) gather(runs_[row_ + 1].unit);
    run.backward ? run_backward(run) : run_forward(run);
    // The sum of a microbatch's last gradient has all of the next forward to end.
    if (run.backward || run.unit + 1 == tables_.units()) release_sums();
    release_weights(run, is_last ? std::vector<int>{} : tables_.used_by(runs_[row_ + 1].unit));
    if (run.backward) collect_sums(run);
  }

  /// Stage 3: gathers the weights that a unit uses and that are not there.
  void gather(int unit) {
    for (const int owner : tables_.used_by(unit)) {
      if (tables_.zero(owner) < 3 || gathered_[owner] >= 0) continue;
      gathered_[owner] = take(StepTensor::Weight, owner, tables_.all_shards(owner), weight_slots_);
      add_joint(StepOp::Gather, tables_.shard_axes(owner),
                {whole(gathered_[owner]), whole(weight_[owner])});
    }
  }

  View weight(int owner) const {
    return whole(tables_.zero(owner) < 3 ? weight_[owner] : gathered_[owner]);
  }

  void run_forward(const UnitRun& run) {
    const auto [unit, m, backward] = run;
    bool begins = true;
    for (const int owner : tables_.used_by(unit)) {
      add_op(StepOp::Forward, {weight(owner), whole(x_.at({unit, m})), whole(x_.at({unit + 1, m}))},
             {false, std::exchange(begins, false)});
    }
    if (tables_.used_by(unit).empty()) {
      add_op(StepOp::ForwardPlain, {whole(x_.at({unit, m})), whole(x_.at({unit + 1, m}))});
    }
    if (unit + 1 < tables_.units()) return;
    add_op(StepOp::Loss, {whole(x_.at({unit + 1, m})), whole(dx_.at({unit + 1, m})), whole(loss_)},
           {false, m == 0});
  }

  void run_backward(const UnitRun& run) {
    const auto [unit, m, backward] = run;
    bool begins = true;
    for (const int owner : tables_.used_by(unit)) {
      // The first unit in backward is the last of those that use the values.
      bool is_new = m == 0 && unit == tables_.users_of(owner).back();
      int grad = grad_[owner];
      if (tables_.zero(owner) >= 2) {
        is_new = whole_grad_[owner] < 0;
        if (is_new) {
          whole_grad_[owner] =
              take(StepTensor::Grad, owner, tables_.all_shards(owner), grad_slots_);
        }
        grad = whole_grad_[owner];
      }
      add_op(StepOp::Backward,
             {weight(owner), whole(x_.at({unit, m})), whole(dx_.at({unit + 1, m})),
              whole(dx_.at({unit, m})), whole(grad)},
             {is_new, std::exchange(begins, false)});
    }
    if (tables_.used_by(unit).empty()) {
      add_op(StepOp::BackwardPlain,
             {whole(x_.at({unit, m})), whole(dx_.at({unit + 1, m})), whole(dx_.at({unit, m}))});
    }
  }

  /// True if only the unit at which runs turn back is between this run and the next one of its
  /// unit.
  bool is_before_turn() const {
    const std::size_t again = static_cast<std::size_t>(row_) + 3;
    return again < runs_.size() && runs_[again].unit == runs_[row_].unit;
  }

  /// Releases the weights behind a run that the next one does not use, unless they would be
  /// gathered again at once, or a later unit uses them in this forward.
  void release_weights(const UnitRun& run, const std::vector<int>& next) {
    if (is_before_turn()) return;
    for (const int owner : tables_.used_by(run.unit)) {
      if (tables_.zero(owner) < 3 || std::ranges::binary_search(next, owner)) continue;
      const std::vector<int>& users = tables_.users_of(owner);
      if (!run.backward && run.unit < users.back()) continue;
      const bool is_over = run.backward && run.unit == users.front();
      if (!tables_.shape().reshard_after_forward && !is_over) continue;
      release(gathered_[owner], weight_slots_);
    }
  }

  void release(int& tile, TransientSlots& pool) {
    add_op(StepOp::Release, {whole(tile)});
    pool.free(program_.tiles[tile].slot);
    tile = -1;
  }

  // Sums.

  /// Notes the gradients that a run has completed: they are summed beside the next one.
  void collect_sums(const UnitRun& run) {
    const bool is_last = run.microbatch + 1 == tables_.shape().microbatches;
    for (const int owner : tables_.used_by(run.unit)) {
      if (tables_.zero(owner) < 2 && !is_last) continue;
      if (run.unit == tables_.users_of(owner).front()) complete_.push_back({owner, run.microbatch});
    }
  }

  /// Sums what the run before has completed, then gathers what was summed beside that run.
  void sum_gradients() {
    const std::vector<int> reduced = std::exchange(reduced_, {});
    for (const auto& [owner, microbatch] : std::exchange(complete_, {})) {
      const AxisSet axes = tables_.shard_axes(owner);
      sum_over_tp(owner);
      if (axes == 0) continue;
      if (tables_.zero(owner) < 2) {
        add_joint(StepOp::ReduceInPlace, axes, {whole(grad_[owner])});
        if (tables_.zero(owner) == 0) reduced_.push_back(owner);
      } else {
        add_joint(StepOp::ReduceScatter, axes, {whole(grad_[owner]), whole(whole_grad_[owner])},
                  microbatch == 0);
        summed_.push_back(owner);
      }
    }
    gather_sums(reduced);
  }

  /// Stage 0: gives all replicas the sums that each of them has.
  void gather_sums(const std::vector<int>& units) {
    for (const int unit : units) {
      add_joint(StepOp::GatherInPlace, tables_.shard_axes(unit), {whole(grad_[unit])});
    }
  }

  /// Releases the whole gradients that are summed in this row.
  void release_sums() {
    for (const int owner : std::exchange(summed_, {})) release(whole_grad_[owner], grad_slots_);
  }

  /// Sums a gradient over the ranks along tp that have the same values, smaller groups first.
  void sum_over_tp(int owner) {
    for (const TpUse use : {TpUse::Shared, TpUse::Summed}) {
      for (const int part : tables_.parts_of(owner)) {
        if (tables_.parts()[part].use != use) continue;
        View view = whole(tables_.zero(owner) < 2 ? grad_[owner] : whole_grad_[owner]);
        view.blocks = BlockIds{part};
        add_joint(StepOp::AllReduce, tables_.same_axes(use), {view});
      }
    }
  }

  void sum_over_copies() {
    const AxisSet axes = tables_.copies_axis();
    for (int unit = 0; axes != 0 && unit < tables_.units(); ++unit) {
      if (has_values(unit)) add_joint(StepOp::AllReduce, axes, {mine(unit, grad_[unit])});
    }
  }

  // The end of the step.

  void add_norm() {
    bool begins = true;
    for (int unit = 0; unit < tables_.units(); ++unit) {
      BlockIds counted;
      for (const int part : tables_.parts_of(unit)) {
        if (tables_.counts_in_norm(part, program_.rank)) counted.push_back(part);
      }
      if (counted.empty()) continue;
      View view = mine(unit, grad_[unit]);
      view.blocks = std::move(counted);
      add_op(StepOp::Norm, {view, whole(norm_)}, {false, std::exchange(begins, false)});
    }
    fetch(0);
    if (tables_.zero() == 0) return sum(norm_, tables_.norm_axes());
    sum(norm_, tables_.replica_axes());
    sum(norm_, tables_.tp_axis());
  }

  void add_move(int to, int from) {
    program_.ops.push_back(
        {.kind = StepOp::Move, .lane = kHost, .step = row_, .views = {whole(to), whole(from)}});
  }

  /// Fetches the state of the first unit from this one on that has values.
  void fetch(int unit) {
    while (unit < tables_.units() && !has_values(unit)) ++unit;
    if (!tables_.shape().state_on_host || unit == tables_.units()) return;
    buffer_[unit] =
        take(StepTensor::Buffer, unit, state_shards(tables_, unit, program_.rank), buffers_);
    add_move(buffer_[unit], state_[unit]);
  }

  /// Moves the state of a unit, if there is one, back to the host.
  void move_back(int unit) {
    if (!tables_.shape().state_on_host || unit < 0) return;
    add_move(state_[unit], buffer_[unit]);
    buffers_.free(program_.tiles[buffer_[unit]].slot);
  }

  /// Updates all units; in stages 1 and 2 the values of each are gathered beside the next.
  void update() {
    int before = -1;
    const auto gather_values = [&] {
      if (before < 0 || tables_.zero(before) < 1 || tables_.zero(before) > 2) return;
      add_joint(StepOp::GatherInPlace, tables_.shard_axes(before), {whole(weight_[before])});
    };
    for (int unit = 0; unit < tables_.units(); ++unit) {
      if (!has_values(unit)) continue;
      gather_values();
      move_back(before);
      fetch(unit + 1);
      const int state = tables_.shape().state_on_host ? buffer_[unit] : state_[unit];
      add_op(StepOp::Update,
             {mine(unit, weight_[unit]), whole(state), mine(unit, grad_[unit]), whole(norm_)});
      before = unit;
      ++row_;
    }
    gather_values();
    move_back(before);
  }

  const StepTables& tables_;
  const Measures& measures_;
  const std::vector<UnitRun> runs_;
  RankProgram program_;
  int row_ = 0;
  // Tiles by unit; -1: none now.
  std::vector<int> weight_, state_, grad_;     ///< At rest.
  std::vector<int> gathered_, whole_grad_;     ///< Transient.
  std::vector<int> buffer_;                    ///< Likewise; of a unit that was fetched.
  std::map<std::pair<int, int>, int> x_, dx_;  ///< By border and microbatch.
  int loss_ = -1;
  int norm_ = -1;
  std::map<std::pair<int, int>, int> transient_;  ///< By slot and unit.
  TransientSlots weight_slots_, grad_slots_, buffers_;
  std::vector<std::pair<int, int>> complete_;  ///< Gradients to be summed: unit, microbatch.
  std::vector<int> summed_;                    ///< Units whose whole gradients are being summed.
  std::vector<int> reduced_;                   ///< Units whose sums are to be gathered.
};

}  // namespace

RankProgram rank_program(const StepTables& tables, const Measures& measures, Rank rank) {
  return StepBuilder(tables, measures, rank).build();
}

StepProgram build_step(const StepShape& shape) {
  const StepTables tables(shape);
  StepProgram step{.tables = tables, .measures = step_measures(tables), .ranks = {}};
  for (Rank rank = 0; rank < shape.mesh.ranks(); ++rank) {
    step.ranks.push_back(rank_program(step.tables, step.measures, rank));
  }
  return step;
}

}  // namespace armillary::plan::step
