// Mutants are made op by op of rank 0. Ranks have the same ops but for the parts that they count in
// the norm, so an op is found on another rank by its kind, row, tensor and first block.
#include "armillary/plan/step/mutants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/program/grid.h"
#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

const Tile& tile_of(const RankProgram& program, const View& view) {
  return program.tiles[view.tile];
}

/// The place on another rank of op `i` of `model`; -1: it is not there.
int same_op(const RankProgram& model, int i, const RankProgram& other) {
  const auto is_same = [&](const Op& a, const Op& b) {
    const View& left = a.views.front();
    const View& right = b.views.front();
    return a.kind == b.kind && a.step == b.step && a.peer == b.peer &&
           left.blocks.front() == right.blocks.front() &&
           tile_of(model, left).tensor == tile_of(other, right).tensor;
  };
  for (std::size_t j = 0; j < other.ops.size(); ++j) {
    if (is_same(model.ops[i], other.ops[j])) return static_cast<int>(j);
  }
  return -1;
}

/// True for ops that sum over ranks.
bool sums_ranks(const Op& op) {
  return op.kind == StepOp::AllReduce || op.kind == StepOp::ReduceScatter ||
         op.kind == StepOp::ReduceInPlace;
}

/// Moves op `i` before op `to`, into its row.
void move_before(RankProgram& program, int i, int to) {
  const auto begin = program.ops.begin();
  program.ops[i].step = program.ops[to].step;
  std::rotate(begin + to, begin + i, begin + i + 1);
}

/// The last op before `i` that makes what a sum reads: of a gradient a backward, or the sum into
/// the shard; of the loss and the norm an op of their kind.
int last_contribution(const RankProgram& program, int i) {
  const Op& sum = program.ops[i];
  const int tile = sum.views.back().tile;
  for (const StepOp kind : {StepOp::Backward, StepOp::ReduceScatter, StepOp::Loss, StepOp::Norm}) {
    for (int j = i; j-- > 0;) {
      const Op& op = program.ops[j];
      if (op.kind != kind) continue;
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        if (op.views[v].tile == tile && step_words().writes(op, v)) return j;
      }
    }
  }
  ARMILLARY_CHECK(false);
}

/// The op before `i` that makes the shard of a gather in place: an update, or a sum.
int source_of(const RankProgram& program, int i) {
  const int tile = program.ops[i].views.front().tile;
  for (int j = i; j-- > 0;) {
    const Op& op = program.ops[j];
    const bool makes = op.kind == StepOp::Update || op.kind == StepOp::ReduceInPlace;
    if (makes && op.views.front().tile == tile) return j;
  }
  ARMILLARY_CHECK(false);
}

bool is_fetch(const RankProgram& program, const Op& op) {
  return op.kind == StepOp::Move &&
         tile_of(program, op.views[MoveOperand::kTo]).tensor == StepTensor::Buffer;
}

/// The buffer of a move.
int buffer_of(const RankProgram& program, const Op& move) {
  return move.views[is_fetch(program, move) ? MoveOperand::kTo : MoveOperand::kFrom].tile;
}

/// The update that takes a buffer.
int update_of(const RankProgram& program, int buffer) {
  const auto update = std::ranges::find_if(program.ops, [&](const Op& op) {
    return op.kind == StepOp::Update && op.views[UpdateOperand::kState].tile == buffer;
  });
  ARMILLARY_CHECK(update != program.ops.end());
  return static_cast<int>(update - program.ops.begin());
}

/// The slot of another buffer than this one; -1: there is none.
int other_slot(const RankProgram& program, int buffer) {
  const auto other = std::ranges::find_if(program.tiles, [&](const Tile& tile) {
    return tile.tensor == StepTensor::Buffer && tile.slot != program.tiles[buffer].slot;
  });
  return other == program.tiles.end() ? -1 : other->slot;
}

/// The last op before `i` that reads the tile that it releases.
int last_reader(const RankProgram& program, int i) {
  const int tile = program.ops[i].views.front().tile;
  for (int j = i; j-- > 0;) {
    const Op& op = program.ops[j];
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (op.views[v].tile == tile && !step_words().writes(op, v)) return j;
    }
  }
  ARMILLARY_CHECK(false);
}

class StepMutants {
 public:
  StepMutants(const StepProgram& step, const std::function<void(const StepMutant&)>& visit)
      : step_(step), visit_(visit) {}

  /// Makes all mutants, or the one at this place alone. Returns how many there are.
  int visit_all(std::optional<int> place = {}) {
    place_ = place;
    const RankProgram& first = step_.ranks.front();
    for (int i = 0; i < static_cast<int>(first.ops.size()); ++i) {
      const Op& op = first.ops[i];
      if (sums_ranks(op)) add_sums(i);
      if (op.kind == StepOp::Gather || op.kind == StepOp::GatherInPlace) {
        on_all(StepMutation::GatherLeftOut, i, erase);
      }
      if (op.kind == StepOp::GatherInPlace) {
        on_all(StepMutation::GatherEarly, i, [](RankProgram& program, int gather) {
          move_before(program, gather, source_of(program, gather));
        });
      }
      if (op.kind == StepOp::Release) add_frees(i);
      if (op.kind == StepOp::Norm) add_norms(i);
      if (op.kind == StepOp::Update) on_one(StepMutation::UpdateLeftOut, i, erase);
      if (op.kind == StepOp::Move) add_moves(i);
    }
    add_norm_sum();
    return count_;
  }

 private:
  /// Counts a mutant; true if it is to be made.
  bool takes_next() {
    const int place = count_++;
    return !place_ || *place_ == place;
  }

  using Change = std::function<void(RankProgram& program, int op)>;

  static void erase(RankProgram& program, int op) { program.ops.erase(program.ops.begin() + op); }
  static void repeat(RankProgram& program, int op) {
    Op again = program.ops[op];
    again.init = {};
    program.ops.insert(program.ops.begin() + op + 1, std::move(again));
  }

  /// Changes op `i` of rank 0 and the same op of all other ranks.
  void on_all(StepMutation mutation, int i, const Change& change) {
    if (!takes_next()) return;
    StepMutant mutant{mutation, 0, i, step_.ranks};
    for (RankProgram& program : mutant.ranks) {
      change(program, same_op(step_.ranks.front(), i, program));
    }
    visit_(mutant);
  }

  /// Changes the op on one rank that has it.
  void on_one(StepMutation mutation, int i, const Change& change) {
    if (!takes_next()) return;
    auto rank = static_cast<Rank>(static_cast<std::size_t>(i) % step_.ranks.size());
    int op = same_op(step_.ranks.front(), i, step_.ranks[rank]);
    if (op < 0) {
      rank = 0;
      op = i;
    }
    StepMutant mutant{mutation, rank, op, step_.ranks};
    change(mutant.ranks[rank], op);
    visit_(mutant);
  }

  void add_sums(int i) {
    on_all(StepMutation::SumLeftOut, i, erase);
    on_all(StepMutation::SumTwice, i, repeat);
    const RankProgram& first = step_.ranks.front();
    for (int group = 0; group < static_cast<int>(first.groups.size()); ++group) {
      if (group == first.ops[i].peer) continue;
      on_all(StepMutation::OtherAxes, i,
             [&](RankProgram& program, int op) { program.ops[op].peer = group; });
    }
    on_all(StepMutation::SumEarly, i, [](RankProgram& program, int op) {
      move_before(program, op, last_contribution(program, op));
    });
  }

  void add_frees(int i) {
    on_one(StepMutation::FreeLeftOut, i, erase);
    on_one(StepMutation::FreeEarly, i, [](RankProgram& program, int op) {
      move_before(program, op, last_reader(program, op));
    });
  }

  void add_moves(int i) {
    on_one(StepMutation::MoveLeftOut, i, erase);
    const RankProgram& first = step_.ranks.front();
    if (!is_fetch(first, first.ops[i])) {
      return on_one(StepMutation::MoveBackEarly, i, [](RankProgram& program, int op) {
        move_before(program, op, update_of(program, buffer_of(program, program.ops[op])));
      });
    }
    on_one(StepMutation::UpdateInFlight, i, [](RankProgram& program, int op) {
      move_before(program, update_of(program, buffer_of(program, program.ops[op])), op);
    });
    on_one(StepMutation::BufferReleased, i, [](RankProgram& program, int op) {
      const int buffer = buffer_of(program, program.ops[op]);
      const int update = update_of(program, buffer);
      const Op release{.kind = StepOp::Release,
                       .step = program.ops[update].step,
                       .views = {program.ops[op].views[MoveOperand::kTo]}};
      program.ops.insert(program.ops.begin() + update, release);
    });
    if (other_slot(first, buffer_of(first, first.ops[i])) < 0) return;
    on_one(StepMutation::OtherBuffer, i, [](RankProgram& program, int op) {
      const int buffer = buffer_of(program, program.ops[op]);
      Tile other = program.tiles[buffer];
      other.slot = other_slot(program, buffer);
      const std::int64_t bytes = program.slots[program.tiles[buffer].slot].bytes;
      program.slots[other.slot].bytes = std::max(program.slots[other.slot].bytes, bytes);
      View& state = program.ops[update_of(program, buffer)].views[UpdateOperand::kState];
      state.tile = static_cast<int>(program.tiles.size());
      program.tiles.push_back(std::move(other));
    });
  }

  void add_norms(int i) {
    on_one(StepMutation::NormTwice, i, repeat);
    count_too(i);
  }

  /// Another rank counts what rank 0 counts in op `i`, though it has the same.
  void count_too(int i) {
    const RankProgram& first = step_.ranks.front();
    const StepTables& tables = step_.tables;
    View counted = first.ops[i].views[NormOperand::kGrad];
    for (const Rank rank : tables.group(tables.norm_axes(), 0)) {
      const RankProgram& program = step_.ranks[rank];
      const int op = same_op(first, i, program);
      if (op >= 0 && program.ops[op].views[NormOperand::kGrad].blocks == counted.blocks) continue;
      if (!takes_next()) return;
      counted.heads = state_shards(tables, tables.parts()[counted.blocks.front()].unit, rank);
      const auto last = std::find_if(program.ops.rbegin(), program.ops.rend(),
                                     [](const Op& other) { return other.kind == StepOp::Norm; });
      const auto place = op >= 0 ? op : static_cast<int>(program.ops.rend() - last) - 1;
      StepMutant mutant{StepMutation::NormOnAllRanks, rank, place, step_.ranks};
      std::vector<Op>& ops = mutant.ranks[rank].ops;
      if (op < 0) {
        Op more = ops[place];
        more.init = {};
        ops.insert(ops.begin() + place + 1, std::move(more));
      }
      ops[op < 0 ? place + 1 : op].views[NormOperand::kGrad] = counted;
      return visit_(mutant);
    }
  }

  /// Copies, and without ZeRO all replicas, count the same values, so their sum counts them often.
  void add_norm_sum() {
    const StepTables& tables = step_.tables;
    const AxisSet axes = tables.copies_axis() | (tables.replica_axes() & ~tables.norm_axes());
    if (axes == 0 || !takes_next()) return;
    StepMutant mutant{StepMutation::NormOnAllRanks, 0, 0, step_.ranks};
    const auto group = std::ranges::find(tables.axis_sets(), axes);
    for (RankProgram& program : mutant.ranks) {
      const auto update =
          std::ranges::find_if(program.ops, [](const Op& op) { return op.kind == StepOp::Update; });
      const Op sum{.kind = StepOp::AllReduce,
                   .lane = 2,
                   .step = update->step,
                   .peer = static_cast<int>(group - tables.axis_sets().begin()),
                   .views = {update->views[UpdateOperand::kNorm]}};
      program.ops.insert(update, sum);
    }
    visit_(mutant);
  }

  const StepProgram& step_;
  const std::function<void(const StepMutant&)>& visit_;
  std::optional<int> place_;
  int count_ = 0;
};

}  // namespace

std::string_view to_string(StepMutation mutation) {
  constexpr std::array<std::string_view, 16> kNames{
      "sum left out",    "sum twice",         "other axes",      "sum early",
      "free early",      "free left out",     "gather left out", "gather early",
      "norm twice",      "norm on all ranks", "update left out", "move left out",
      "move back early", "update in flight",  "other buffer",    "buffer released"};
  return kNames.at(static_cast<std::size_t>(mutation));
}

std::string to_string(const StepMutant& mutant, const StepProgram& step) {
  const Op& op = step.ranks[mutant.rank].ops[mutant.op];
  return fmt::format("{}: rank {} op {}, {}", to_string(mutant.mutation), mutant.rank, mutant.op,
                     plan::to_string(step.world(), mutant.rank, op));
}

void for_each_mutant(const StepProgram& step,
                     const std::function<void(const StepMutant& mutant)>& visit) {
  StepMutants(step, visit).visit_all();
}

int count_mutants(const StepProgram& step) {
  const std::function<void(const StepMutant&)> none;
  return StepMutants(step, none).visit_all(-1);
}

StepMutant mutant_at(const StepProgram& step, int place) {
  std::optional<StepMutant> result;
  const std::function<void(const StepMutant&)> keep = [&](const StepMutant& mutant) {
    result = mutant;
  };
  StepMutants(step, keep).visit_all(place);
  ARMILLARY_CHECK(result);
  return *std::move(result);
}

}  // namespace armillary::plan::step
