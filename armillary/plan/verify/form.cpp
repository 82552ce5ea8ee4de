#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "armillary/plan/each_rank.h"
#include "armillary/plan/hazards.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

int heads_of(const Problem& problem, Tensor tensor) {
  return is_kv(tensor) ? problem.kv_heads : problem.heads;
}

bool holds_partial(Tensor tensor) {
  return tensor == Tensor::Out || tensor == Tensor::Lse || tensor == Tensor::DQ ||
         tensor == Tensor::DK || tensor == Tensor::DV;
}

/// What an operand of an op must be.
struct Expect {
  Tensor tensor;
  bool partial;
};

/// Operand types of the ops whose operands differ; empty for those that take any tile.
std::span<const Expect> expected(OpKind kind) {
  using enum Tensor;
  static constexpr Expect kAttend[] = {
      {Q, false}, {K, false}, {V, false}, {Out, true}, {Lse, true}};
  static constexpr Expect kAttendGrad[] = {{Q, false},    {K, false},   {V, false},
                                           {DOut, false}, {Lse, false}, {Delta, false},
                                           {DQ, true},    {DK, true},   {DV, true}};
  static constexpr Expect kMerge[] = {{Out, true}, {Lse, true}, {Out, true}, {Lse, true}};
  static constexpr Expect kDelta[] = {{Delta, false}, {DOut, false}, {Out, false}, {Lse, false}};
  static constexpr Expect kFinish[] = {{Out, false}, {Lse, false}, {Out, true}, {Lse, true}};
  static constexpr Expect kAttendAll[] = {
      {Q, false}, {K, false}, {V, false}, {Out, false}, {Lse, false}};
  static constexpr Expect kAttendGradAll[] = {{Q, false},    {K, false},   {V, false},
                                              {DOut, false}, {Lse, false}, {Delta, false},
                                              {DQ, false},   {DK, false},  {DV, false}};
  switch (kind) {
    case OpKind::Attend:
      return kAttend;
    case OpKind::AttendGrad:
      return kAttendGrad;
    case OpKind::Merge:
      return kMerge;
    case OpKind::Delta:
      return kDelta;
    case OpKind::Finish:
      return kFinish;
    case OpKind::AttendAll:
      return kAttendAll;
    case OpKind::AttendGradAll:
      return kAttendGradAll;
    default:
      return {};
  }
}

/// What travels narrow is made by what rounds, and is summed into something wide.
bool may_be_narrow(OpKind kind, std::size_t operand) {
  return (kind == OpKind::Copy && operand == 0) || (kind == OpKind::Add && operand == 1) ||
         (kind == OpKind::Merge && operand == 2) || (kind == OpKind::AttendGradAll && operand >= 6);
}

class FormChecker {
 public:
  FormChecker(const Plan& plan, const TokenCounts& counts, const RankProgram& program,
              Report& report)
      : plan_(plan), counts_(counts), program_(program), report_(report) {}

  void check() {
    check_slots();
    for (int id = 0; id < static_cast<int>(program_.tiles.size()); ++id) check_tile(id);
    for (const auto* roles : {&program_.inputs, &program_.outputs, &program_.saved}) {
      for (const int id : *roles) {
        if (id < 0 || id >= static_cast<int>(program_.tiles.size())) {
          report_.add(program_.rank, -1, "form", "no tile {}", id);
        }
      }
    }
    if (!report_.empty()) return;
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) check_op(i);
  }

 private:
  /// Sizes that can be added up.
  void check_slots() {
    std::int64_t total = 0;
    for (std::size_t s = 0; s < program_.slots.size(); ++s) {
      const std::int64_t bytes = program_.slots[s].bytes;
      if (bytes < 0 || __builtin_add_overflow(total, bytes, &total)) {
        report_.add(program_.rank, -1, "form", "slot {} has {} bytes", s, bytes);
        return;
      }
    }
  }

  void check_tile(int id) {
    const Tile& tile = program_.tiles[id];
    const int heads = heads_of(plan_.problem, tile.tensor);
    const int blocks = static_cast<int>(blocks_of(plan_.blocks, tile.tensor).size());
    if (tile.heads.begin < 0 || tile.heads.begin > tile.heads.end || tile.heads.end > heads) {
      report_.add(program_.rank, -1, "form", "tile {} has heads {}-{} of {}", id, tile.heads.begin,
                  tile.heads.end, heads);
    } else if (!ascend_below(tile.blocks, blocks)) {
      report_.add(program_.rank, -1, "form", "tile {} lists blocks that do not ascend below {}", id,
                  blocks);
    } else if (tile.slot < 0 || tile.slot >= static_cast<int>(program_.slots.size())) {
      report_.add(program_.rank, -1, "form", "tile {} lies in slot {} of {}", id, tile.slot,
                  program_.slots.size());
    } else if (tile.partial && !holds_partial(tile.tensor)) {
      report_.add(program_.rank, -1, "form", "tile {}: {} cannot be partial", id,
                  to_string(tile.tensor));
    } else if (tile.narrow && !(tile.partial && travels_narrow(plan_.problem, tile.tensor))) {
      report_.add(program_.rank, -1, "form", "tile {}: {} cannot be narrow", id,
                  to_string(tile.tensor));
    } else if (bytes_of(plan_.problem, counts_, tile) > program_.slots[tile.slot].bytes) {
      report_.add(program_.rank, -1, "form", "tile {} of {} bytes does not fit its slot of {}", id,
                  bytes_of(plan_.problem, counts_, tile), program_.slots[tile.slot].bytes);
    }
  }

  void check_op(int i) {
    const Op& op = program_.ops[i];
    if (!takes(op.kind, op.views.size())) {
      report_.add(program_.rank, i, "form", "{} with {} operands; it takes {}{}",
                  to_string(op.kind), op.views.size(), operands(op.kind).size(),
                  op.is_comm() ? " or more" : "");
      return;
    }
    if ((op.fresh_q && op.kind != OpKind::Attend && op.kind != OpKind::AttendGrad) ||
        (op.fresh_kv && op.kind != OpKind::AttendGrad)) {
      report_.add(program_.rank, i, "form", "{} has no sums of {} that it could begin",
                  to_string(op.kind), op.fresh_q ? "queries" : "keys");
      return;
    }
    if (op.step < 0) {
      report_.add(program_.rank, i, "form", "{} in step {}; steps count from 0", to_string(op.kind),
                  op.step);
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

  bool check_view(int i, const View& view) {
    if (view.tile < 0 || view.tile >= static_cast<int>(program_.tiles.size())) {
      report_.add(program_.rank, i, "form", "no tile {}", view.tile);
      return false;
    }
    const Tile& tile = program_.tiles[view.tile];
    const int blocks = static_cast<int>(blocks_of(plan_.blocks, tile.tensor).size());
    const bool held = view.blocks == tile.blocks ||
                      (ascend_below(view.blocks, blocks) && includes(tile.blocks, view.blocks));
    const bool inside = tile.heads.contains(view.heads) && view.heads.begin < view.heads.end &&
                        !view.blocks.empty() && held;
    if (!inside) {
      report_.add(program_.rank, i, "form", "the view {} is empty or not inside its tile",
                  describe(program_, view));
    }
    return inside;
  }

  void check_comm(int i) {
    const Op& op = program_.ops[i];
    if (op.lane <= kCompute) {
      report_.add(program_.rank, i, "form", "{} on the compute lane", to_string(op.kind));
    }
    if (op.peer < 0 || op.peer >= plan_.problem.world || op.peer == program_.rank) {
      report_.add(program_.rank, i, "form", "{} with peer {}; peers are the other ranks below {}",
                  to_string(op.kind), op.peer, plan_.problem.world);
    }
    for (const View& view : op.views) check_wire(i, view);
    if (op.kind == OpKind::Recv) {
      for (std::size_t v = 0; v < op.views.size(); ++v) check_alias(i, v);
    }
  }

  void check_wire(int i, const View& view) {
    const Tile& moved = tile(view);
    if (!moved.partial || moved.narrow == travels_narrow(plan_.problem, moved.tensor)) return;
    report_.add(program_.rank, i, "form", "{} travels in {}; under wire {} it travels in {}",
                describe(program_, view), to_string(dtype_of(plan_.problem, moved)),
                to_string(plan_.problem.wire), to_string(plan_.problem.dtype));
  }

  const Tile& tile(const View& view) const { return program_.tiles[view.tile]; }

  void check_compute(int i) {
    const Op& op = program_.ops[i];
    if (op.lane != kCompute) {
      report_.add(program_.rank, i, "form", "{} on comm lane {}", to_string(op.kind), op.lane);
    }
    const std::span<const Expect> types = expected(op.kind);
    for (std::size_t v = 0; v < types.size(); ++v) {
      const Tile& given = tile(op.views[v]);
      const bool rounded = op.kind == OpKind::AttendGradAll && given.narrow;  // a part, or all
      if (given.tensor != types[v].tensor || given.partial != (types[v].partial || rounded)) {
        report_.add(program_.rank, i, "form", "operand {} is {}{}; it must be {}{}",
                    operands(op.kind)[v].name, given.partial ? "partial " : "",
                    to_string(given.tensor), types[v].partial ? "partial " : "",
                    to_string(types[v].tensor));
        return;
      }
    }
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (!tile(op.views[v]).narrow || may_be_narrow(op.kind, v)) continue;
      report_.add(program_.rank, i, "form", "operand {} is narrow; it must be in the accumulator",
                  operands(op.kind)[v].name);
      return;
    }
    check_shapes(i);
    check_calls(i);
    for (std::size_t a = 0; a < op.views.size(); ++a) check_alias(i, a);
  }

  /// Operands of one side cover the same blocks and heads; KV operands hold the heads that are
  /// read.
  void check_shapes(int i) {
    const Op& op = program_.ops[i];
    const View& first = op.views[0];
    const bool attends = op.attends() || op.attends_grad();
    for (const View& view : op.views) {
      const View& model = attends && is_kv(tile(view).tensor) ? op.views[1] : first;
      if (view.blocks != model.blocks || view.heads != model.heads) {
        report_.add(program_.rank, i, "form", "{} and {} differ in blocks or heads",
                    describe(program_, model), describe(program_, view));
        return;
      }
    }
    if (attends && !op.views[1].heads.contains(kv_heads_of(plan_.problem, op.views[0].heads))) {
      report_.add(program_.rank, i, "form", "{} does not hold the KV heads of {}",
                  describe(program_, op.views[1]), describe(program_, first));
    }
    const bool same_tensor = op.kind == OpKind::Add || op.kind == OpKind::Copy;
    if (same_tensor && tile(op.views[0]).tensor != tile(op.views[1]).tensor) {
      report_.add(program_.rank, i, "form", "{} of {} and {}", to_string(op.kind),
                  describe(program_, op.views[0]), describe(program_, op.views[1]));
    }
  }

  /// Sums that are written in place of being added to are written by one kernel call.
  void check_calls(int i) {
    const Op& op = program_.ops[i];
    const bool one = op.fresh_q || op.fresh_kv || op.kind == OpKind::AttendAll ||
                     op.kind == OpKind::AttendGradAll;
    if (!one || !report_.empty()) return;
    if (is_one_call(plan_.problem.mask, locate(plan_.blocks, program_, op))) return;
    report_.add(program_.rank, i, "form", "{} of {} and {} is not one kernel call, as it must be",
                to_string(op.kind), describe(program_, op.views[0]),
                describe(program_, op.views[1]));
  }

  bool is_whole(const View& view) const { return plan::is_whole(tile(view), view); }

  /// Whether operand `a` may be written where `b` lies: there is nothing to move.
  bool in_place(const Op& op, std::size_t a, std::size_t b) const {
    const bool same_part =
        (op.kind == OpKind::Copy && b == a + 1) || (op.kind == OpKind::Finish && b == a + 2);
    return same_part && is_whole(op.views[a]) && is_whole(op.views[b]) &&
           dtype_of(plan_.problem, tile(op.views[a])) == dtype_of(plan_.problem, tile(op.views[b]));
  }

  /// An op that writes where another operand of it lies reads what it is overwriting.
  void check_alias(int i, std::size_t a) {
    const Op& op = program_.ops[i];
    if (!writes(op, a)) return;
    for (std::size_t b = 0; b < op.views.size(); ++b) {
      const bool apart =
          tile(op.views[a]).slot != tile(op.views[b]).slot || same_tile_apart(op, a, b);
      if (a == b || apart || in_place(op, a, b)) continue;
      report_.add(program_.rank, i, "form", "operands {} and {} share slot {}",
                  operand_name(op.kind, a), operand_name(op.kind, b), tile(op.views[a]).slot);
      return;
    }
  }

  /// Of a message: two parts of one tile.
  bool same_tile_apart(const Op& op, std::size_t a, std::size_t b) const {
    return op.is_comm() && op.views[a].tile == op.views[b].tile &&
           !overlap(op.views[a], op.views[b]);
  }

  const Plan& plan_;
  const TokenCounts& counts_;
  const RankProgram& program_;
  Report& report_;
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

void check_form(const Plan& plan, Report& report) {
  if (static_cast<int>(plan.ranks.size()) != plan.problem.world) {
    report.add(-1, -1, "form", "{} programs for a world of {}", plan.ranks.size(),
               plan.problem.world);
  }
  const int count = static_cast<int>(plan.ranks.size());
  const TokenCounts counts(plan.blocks);
  std::vector<Report> of_rank(count, Report(report.limit()));
  for_each_rank(count, [&](Rank rank) {
    if (plan.ranks[rank].rank != rank) {
      of_rank[rank].add(rank, -1, "form", "the program at place {} says it is rank {}", rank,
                        plan.ranks[rank].rank);
    }
    FormChecker(plan, counts, plan.ranks[rank], of_rank[rank]).check();
  });
  for (const Report& found : of_rank) report.add(found);
}

}  // namespace armillary::plan::verifier
