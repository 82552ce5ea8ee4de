// Rule `well_formed`, rank by rank on all cores. Tiles and slots come first: indices, ranges,
// sizes. Then each op: its number of operands, its views, and for a message the peer and the wire,
// for a compute op the types of its operands, their shapes, and memory that must not be shared.
#include <algorithm>
#include <cstdint>
#include <span>

#include "armillary/plan/hazards.h"
#include "armillary/plan/operands.h"
#include "armillary/plan/parallel_for_ranks.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// The number of heads of a tensor.
int heads_of(const Problem& problem, Tensor tensor) {
  return is_kv(tensor) ? problem.kv_heads : problem.heads;
}

/// True for tensors that are sums over the other side, and so may be partial.
bool holds_partial(Tensor tensor) {
  return tensor == Tensor::Out || tensor == Tensor::Lse || tensor == Tensor::DQ ||
         tensor == Tensor::DK || tensor == Tensor::DV;
}

/// True if an operand may be a narrow tile. Ops that round make it; ops that sum read it and add it
/// to an accumulator.
bool may_be_narrow(OpKind kind, std::size_t operand) {
  switch (kind) {
    case OpKind::Copy:
      return operand == CopyOperand::kDst;
    case OpKind::Add:
      return operand == AddOperand::kPart;
    case OpKind::Merge:
      return operand == MergeOperand::kPartOut;
    case OpKind::AttendGradAll:
      return operand == AttendGradOperand::kDQ || operand == AttendGradOperand::kDK ||
             operand == AttendGradOperand::kDV;
    default:
      return false;
  }
}

/// Checks the program of one rank.
class WellFormedChecker {
 public:
  WellFormedChecker(const Plan& plan, const TokenCounts& counts, const RankProgram& program,
                    Diagnostics& diagnostics)
      : plan_(plan), counts_(counts), program_(program), diagnostics_(diagnostics) {}

  void check() {
    check_slots();
    for (int id = 0; id < static_cast<int>(program_.tiles.size()); ++id) check_tile(id);
    for (const auto* roles : {&program_.inputs, &program_.outputs, &program_.saved}) {
      for (const int id : *roles) {
        if (id < 0 || id >= static_cast<int>(program_.tiles.size())) {
          diagnostics_.add(program_.rank, -1, "well_formed", "no tile {}", id);
        }
      }
    }
    if (!diagnostics_.empty()) return;
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) check_op(i);
  }

 private:
  /// Slots have sizes that can be added up.
  void check_slots() {
    std::int64_t total = 0;
    for (std::size_t s = 0; s < program_.slots.size(); ++s) {
      const std::int64_t bytes = program_.slots[s].bytes;
      if (bytes < 0 || __builtin_add_overflow(total, bytes, &total)) {
        diagnostics_.add(program_.rank, -1, "well_formed", "slot {} has {} bytes", s, bytes);
        return;
      }
    }
  }

  /// The tile's heads and blocks exist, it has a slot large enough, and its flags fit its tensor.
  /// The tests are in this order because each relies on those before it.
  void check_tile(int id) {
    const Tile& tile = program_.tiles[id];
    const int heads = heads_of(plan_.problem, tile.tensor);
    const int blocks = static_cast<int>(blocks_of(plan_.blocks, tile.tensor).size());
    if (tile.heads.begin < 0 || tile.heads.begin > tile.heads.end || tile.heads.end > heads) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {} has heads {}-{} of {}", id,
                       tile.heads.begin, tile.heads.end, heads);
    } else if (!ascend_below(tile.blocks, blocks)) {
      diagnostics_.add(program_.rank, -1, "well_formed",
                       "tile {} lists blocks that do not ascend below {}", id, blocks);
    } else if (tile.slot < 0 || tile.slot >= static_cast<int>(program_.slots.size())) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {} lies in slot {} of {}", id,
                       tile.slot, program_.slots.size());
    } else if (tile.partial && !holds_partial(tile.tensor)) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {}: {} cannot be partial", id,
                       to_string(tile.tensor));
    } else if (tile.narrow && !(tile.partial && travels_narrow(plan_.problem, tile.tensor))) {
      diagnostics_.add(program_.rank, -1, "well_formed", "tile {}: {} cannot be narrow", id,
                       to_string(tile.tensor));
    } else if (bytes_of(plan_.problem, counts_, tile) > program_.slots[tile.slot].bytes) {
      diagnostics_.add(program_.rank, -1, "well_formed",
                       "tile {} of {} bytes does not fit its slot of {}", id,
                       bytes_of(plan_.problem, counts_, tile), program_.slots[tile.slot].bytes);
    }
  }

  /// Everything about one op. Later checks index views and tiles, so the first ones return early.
  void check_op(int i) {
    const Op& op = program_.ops[i];
    if (!takes(op.kind, op.views.size())) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} with {} operands; it takes {}{}",
                       to_string(op.kind), op.views.size(), operands(op.kind).size(),
                       op.is_comm() ? " or more" : "");
      return;
    }
    if ((op.init_q && op.kind != OpKind::Attend && op.kind != OpKind::AttendGrad) ||
        (op.init_kv && op.kind != OpKind::AttendGrad)) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} has no sums of {} that it could begin",
                       to_string(op.kind), op.init_q ? "queries" : "keys");
      return;
    }
    if (op.step < 0) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} in step {}; steps count from 0",
                       to_string(op.kind), op.step);
    }
    for (const View& view : op.views) {
      if (!check_view(i, view)) return;
    }
    if (op.is_comm()) {
      check_comm(i);
    } else {
      check_compute(i);
    }
  }

  /// The view is not empty and lies in its tile.
  bool check_view(int i, const View& view) {
    if (view.tile < 0 || view.tile >= static_cast<int>(program_.tiles.size())) {
      diagnostics_.add(program_.rank, i, "well_formed", "no tile {}", view.tile);
      return false;
    }
    const Tile& tile = program_.tiles[view.tile];
    const int blocks = static_cast<int>(blocks_of(plan_.blocks, tile.tensor).size());
    const bool held = view.blocks == tile.blocks ||
                      (ascend_below(view.blocks, blocks) && includes(tile.blocks, view.blocks));
    const bool inside = tile.heads.contains(view.heads) && view.heads.begin < view.heads.end &&
                        !view.blocks.empty() && held;
    if (!inside) {
      diagnostics_.add(program_.rank, i, "well_formed",
                       "the view {} is empty or not inside its tile", describe(program_, view));
    }
    return inside;
  }

  /// A message has a lane and a peer, and its views travel in the right dtype.
  void check_comm(int i) {
    const Op& op = program_.ops[i];
    if (op.lane <= kCompute) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} on the compute lane",
                       to_string(op.kind));
    }
    if (op.peer < 0 || op.peer >= plan_.problem.world || op.peer == program_.rank) {
      diagnostics_.add(program_.rank, i, "well_formed",
                       "{} with peer {}; peers are the other ranks below {}", to_string(op.kind),
                       op.peer, plan_.problem.world);
    }
    for (const View& view : op.views) check_wire(i, view);
    if (op.kind == OpKind::Recv) {
      for (std::size_t v = 0; v < op.views.size(); ++v) check_alias(i, v);
    }
  }

  /// A partial that travels is narrow exactly if the problem's wire says so.
  void check_wire(int i, const View& view) {
    const Tile& moved = tile(view);
    if (!moved.partial || moved.narrow == travels_narrow(plan_.problem, moved.tensor)) return;
    diagnostics_.add(program_.rank, i, "well_formed",
                     "{} travels in {}; under wire {} it travels in {}", describe(program_, view),
                     to_string(dtype_of(plan_.problem, moved)), to_string(plan_.problem.wire),
                     to_string(plan_.problem.dtype));
  }

  const Tile& tile(const View& view) const { return program_.tiles[view.tile]; }

  /// A compute op is on its lane, and its operands fit the op and each other.
  void check_compute(int i) {
    const Op& op = program_.ops[i];
    if (op.lane != kCompute) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} on comm lane {}", to_string(op.kind),
                       op.lane);
    }
    // Tensors of the operands. attend_grad_all writes either the whole gradient, as a final tile,
    // or a part of it, rounded to travel.
    const std::span<const Operand> required = operands(op.kind);
    for (std::size_t v = 0; v < required.size(); ++v) {
      const Operand& operand = required[v];
      if (!operand.tensor) continue;
      const Tile& given = tile(op.views[v]);
      const bool rounded = op.kind == OpKind::AttendGradAll && given.narrow;
      if (given.tensor != *operand.tensor || given.partial != (operand.partial || rounded)) {
        diagnostics_.add(program_.rank, i, "well_formed", "operand {} is {}{}; it must be {}{}",
                         operand.name, given.partial ? "partial " : "", to_string(given.tensor),
                         operand.partial ? "partial " : "", to_string(*operand.tensor));
        return;
      }
    }
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (!tile(op.views[v]).narrow || may_be_narrow(op.kind, v)) continue;
      diagnostics_.add(program_.rank, i, "well_formed",
                       "operand {} is narrow; it must be in the accumulator", required[v].name);
      return;
    }
    // Shapes, kernel calls and shared memory.
    check_shapes(i);
    check_calls(i);
    for (std::size_t a = 0; a < op.views.size(); ++a) check_alias(i, a);
  }

  /// Operands of one side show the same blocks and heads; operands of the key side have the KV
  /// heads that the query heads read.
  void check_shapes(int i) {
    const Op& op = program_.ops[i];
    // Views of keys are compared with k, all others with the first operand.
    const View& first = op.views.front();
    const bool attends = op.attends() || op.attends_grad();
    for (const View& view : op.views) {
      const bool of_keys = attends && is_kv(tile(view).tensor);
      const View& model = of_keys ? op.views[QkvOperand::kK] : first;
      if (view.blocks != model.blocks || view.heads != model.heads) {
        diagnostics_.add(program_.rank, i, "well_formed", "{} and {} differ in blocks or heads",
                         describe(program_, model), describe(program_, view));
        return;
      }
    }
    if (attends) {
      const View& q = op.views[QkvOperand::kQ];
      const View& k = op.views[QkvOperand::kK];
      if (!k.heads.contains(kv_heads_of(plan_.problem, q.heads))) {
        diagnostics_.add(program_.rank, i, "well_formed", "{} does not hold the KV heads of {}",
                         describe(program_, k), describe(program_, q));
      }
    }
    // add and copy take any tensor, but the same for both operands.
    const bool same_tensor = op.kind == OpKind::Add || op.kind == OpKind::Copy;
    if (same_tensor && tile(op.views.front()).tensor != tile(op.views.back()).tensor) {
      diagnostics_.add(program_.rank, i, "well_formed", "{} of {} and {}", to_string(op.kind),
                       describe(program_, op.views.front()), describe(program_, op.views.back()));
    }
  }

  /// An op that initialises accumulators, or writes results, must be one kernel call: a second call
  /// would write over the first one.
  void check_calls(int i) {
    const Op& op = program_.ops[i];
    const bool one =
        op.init_q || op.init_kv || op.kind == OpKind::AttendAll || op.kind == OpKind::AttendGradAll;
    if (!one || !diagnostics_.empty()) return;
    if (is_one_call(plan_.problem.mask, plan_.blocks, program_, op)) return;
    diagnostics_.add(program_.rank, i, "well_formed",
                     "{} of {} and {} is not one kernel call, as it must be", to_string(op.kind),
                     describe(program_, op.views[QkvOperand::kQ]),
                     describe(program_, op.views[QkvOperand::kK]));
  }

  bool is_whole(const View& view) const { return plan::is_whole(tile(view), view); }

  /// True if operand `a` may be written in the memory of operand `b`, because the op then moves
  /// nothing: a copy, or the end of a sum, between whole tiles of one dtype.
  bool in_place(const Op& op, std::size_t a, std::size_t b) const {
    return moves(op.kind, a, b) && is_whole(op.views[a]) && is_whole(op.views[b]) &&
           dtype_of(plan_.problem, tile(op.views[a])) == dtype_of(plan_.problem, tile(op.views[b]));
  }

  /// True if an op of this kind writes to operand `to` the values of operand `from`.
  static bool moves(OpKind kind, std::size_t to, std::size_t from) {
    if (kind == OpKind::Copy) return to == CopyOperand::kDst && from == CopyOperand::kSrc;
    if (kind != OpKind::Finish) return false;
    return (to == FinishOperand::kOut && from == FinishOperand::kPartOut) ||
           (to == FinishOperand::kLse && from == FinishOperand::kPartLse);
  }

  /// A written operand shares no slot with another operand of the op: otherwise the op would read
  /// values that it is overwriting.
  void check_alias(int i, std::size_t a) {
    const Op& op = program_.ops[i];
    if (!writes(op, a)) return;
    const int slot = tile(op.views[a]).slot;
    for (std::size_t b = 0; b < op.views.size(); ++b) {
      const bool apart = tile(op.views[b]).slot != slot || same_tile_apart(op, a, b);
      if (a == b || apart || in_place(op, a, b)) continue;
      diagnostics_.add(program_.rank, i, "well_formed", "operands {} and {} share slot {}",
                       operand_name(op.kind, a), operand_name(op.kind, b), slot);
      return;
    }
  }

  /// True for a message that shows two different parts of one tile.
  bool same_tile_apart(const Op& op, std::size_t a, std::size_t b) const {
    return op.is_comm() && op.views[a].tile == op.views[b].tile &&
           !overlap(op.views[a], op.views[b]);
  }

  const Plan& plan_;
  const TokenCounts& counts_;
  const RankProgram& program_;
  Diagnostics& diagnostics_;
};

}  // namespace

std::string describe(const RankProgram& program, const View& view) {
  const bool known = view.tile >= 0 && view.tile < static_cast<int>(program.tiles.size());
  return fmt::format("{}{}{}{{{}}} heads {}-{}",
                     known && program.tiles[view.tile].narrow ? "narrow " : "",
                     known && program.tiles[view.tile].partial ? "partial " : "",
                     known ? to_string(program.tiles[view.tile].tensor) : "?",
                     fmt::join(view.blocks, ","), view.heads.begin, view.heads.end);
}

// One list of diagnostics per rank, appended in the order of the ranks.
void check_well_formed(const Plan& plan, Diagnostics& diagnostics, const Fold* fold) {
  const int required = fold == nullptr ? plan.problem.world : fold->classes();
  if (static_cast<int>(plan.ranks.size()) != required) {
    diagnostics.add(-1, -1, "well_formed", "{} programs for a world of {}", plan.ranks.size(),
                    required);
  }
  const int count = static_cast<int>(plan.ranks.size());
  const TokenCounts counts(plan.blocks);
  std::vector<Diagnostics> of_rank(count, Diagnostics(diagnostics.limit()));
  parallel_for_ranks(count, [&](Rank rank) {
    if (plan.ranks[rank].rank != (fold == nullptr ? rank : fold->representative(rank))) {
      of_rank[rank].add(rank, -1, "well_formed", "the program at place {} says it is rank {}", rank,
                        plan.ranks[rank].rank);
    }
    WellFormedChecker(plan, counts, plan.ranks[rank], of_rank[rank]).check();
  });
  for (const Diagnostics& found : of_rank) diagnostics.add(found);
}

}  // namespace armillary::plan::verifier
