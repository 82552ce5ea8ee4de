// rules.cpp: the reasons of rules.h for which a mutant may be as good as its plan, each a function
// of the plan and the mutation. They are plain loops over ops, written without verify.
#include "tests/mutation/rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/mutation/interpreter.h"

namespace armillary::mutation {

using plan::Access;
using plan::Mutation;
using plan::MutationKind;
using plan::Op;
using plan::OpKind;
using plan::Plan;
using plan::RankProgram;
using plan::Tile;
using plan::View;

namespace {

/// Ops of every batch of every comm lane.
std::map<plan::Lane, std::vector<std::vector<int>>> batches(const RankProgram& program) {
  std::map<plan::Lane, std::vector<std::vector<int>>> lanes;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (!op.is_comm()) continue;
    auto& list = lanes[op.lane];
    if (list.empty() || program.ops[list.back().back()].step != op.step) list.emplace_back();
    list.back().push_back(i);
  }
  return lanes;
}

/// Whether the steps of the ops of each lane never decrease.
bool steps_ascend(const RankProgram& program) {
  std::map<plan::Lane, int> last;
  return std::all_of(program.ops.begin(), program.ops.end(), [&](const Op& op) {
    int& before = last[op.lane];
    return std::exchange(before, op.step) <= op.step;
  });
}

/// Whether the op may be done twice in a row: it updates nothing. A `delta` may not, because it
/// adds its rows to the gradient of the sinks, which no operand shows.
bool repeatable(const Op& op) {
  bool updates = false;
  for (std::size_t v = 0; v < op.views.size(); ++v) {
    updates = updates || access(op, v) == Access::Update;
  }
  return !op.is_comm() && op.kind != OpKind::Delta && !updates;
}

bool adds_up(OpKind kind) {
  return kind == OpKind::Attend || kind == OpKind::AttendGrad || kind == OpKind::Merge ||
         kind == OpKind::Add;
}

/// Both are messages of the same direction between the same ranks, on one lane.
bool same_queue(const Op& a, const Op& b) {
  return a.is_comm() && a.kind == b.kind && a.lane == b.lane && a.peer == b.peer;
}

std::string_view rule_of_swap(const RankProgram& program, const Op& a, const Op& b) {
  if (a == b) return "the same op";
  if (same_queue(a, b)) return "";
  bool independent = true;
  for (std::size_t v = 0; v < a.views.size(); ++v) {
    for (std::size_t w = 0; w < b.views.size(); ++w) {
      const Access first = access(a, v);
      const Access second = access(b, w);
      if (first == Access::Read && second == Access::Read) continue;
      if (!touch(program, a.views[v], b.views[w])) continue;
      const bool sums = first == Access::Update && second == Access::Update && adds_up(a.kind) &&
                        adds_up(b.kind) && a.views[v].tile == b.views[w].tile;
      if (!sums) return "";
      independent = false;
    }
  }
  return independent ? "independent" : "sums commute";
}

std::string_view rule_of_tile(const RankProgram& program, const Op& op, const Mutation& mutation) {
  std::size_t operand = 0;
  while ((mutation.operands >> operand & 1) == 0) ++operand;
  const bool partial = program.tiles[op.views[operand].tile].partial;
  if (partial != program.tiles[mutation.to].partial && op.kind != OpKind::Copy) return "";
  switch (access(op, operand)) {
    case Access::Read:
      return partial ? "same sums" : "same tensor";
    case Access::Update:
      return adds_up(op.kind) ? "other order" : "";
    case Access::Write:
      return "";
  }
  return "";
}

/// Blocks of queries and of keys that an op attends to and that see each other.
std::vector<std::pair<int, int>> visible_pairs(const Plan& plan, const Op& op) {
  std::vector<std::pair<int, int>> pairs;
  for (const int q : op.views[0].blocks) {
    for (const int k : op.views[1].blocks) {
      if (plan.problem.mask.area(plan.blocks.q[q].runs, plan.blocks.kv[k].runs) > 0) {
        pairs.emplace_back(q, k);
      }
    }
  }
  return pairs;
}

bool sees_keys(const Op& op) {
  return attends(op) || attends_grad(op);
}

/// Whether an op that attends adds nothing to the accumulator view `sum`: no block of `sum` is in a
/// visible pair of the op.
bool adds_nothing(const Plan& plan, const RankProgram& program, const Op& op, const View& sum) {
  if (!sees_keys(op)) return false;
  const bool of_keys = is_kv(program.tiles[sum.tile].tensor);
  const auto pairs = visible_pairs(plan, op);
  return std::none_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
    const int block = of_keys ? pair.second : pair.first;
    return std::find(sum.blocks.begin(), sum.blocks.end(), block) != sum.blocks.end();
  });
}

/// Whether a sum, operand `v` of op `of`, holds nothing before it: it was cleared, or written by an
/// op that adds nothing to it, and nothing was added since.
bool begins(const Plan& plan, const RankProgram& program, int of, std::size_t v) {
  const View& sum = program.ops[of].views[v];
  for (int i = of - 1; i >= 0; --i) {
    const Op& before = program.ops[i];
    for (std::size_t w = 0; w < before.views.size(); ++w) {
      const View& view = before.views[w];
      if (view.tile != sum.tile || !touch(program, view, sum)) continue;
      if (before.kind == OpKind::Clear) return true;
      if (!adds_nothing(plan, program, before, sum)) return false;
      if (access(before, w) == Access::Write && includes(view.blocks, sum.blocks)) return true;
    }
  }
  return false;
}

/// Whether all accumulators whose `init` the mutation flips hold nothing before the op: operands 3
/// and 4 (out, lse) of an attend, 6 (dq) or 7 and 8 (dk, dv) of an attend_grad.
bool begins(const Plan& plan, const Mutation& mutation) {
  const RankProgram& program = plan.ranks[mutation.rank];
  const bool grad = attends_grad(program.ops[mutation.op]);
  const std::size_t first = !grad ? 3 : mutation.to == 0 ? 6 : 7;
  const std::size_t last = !grad ? 4 : mutation.to == 0 ? 6 : 8;
  for (std::size_t v = first; v <= last; ++v) {
    if (!begins(plan, program, mutation.op, v)) return false;
  }
  return true;
}

/// For every read of a cell, in program order: who wrote it last (-1: nobody, it was given).
std::vector<int> writers_of_reads(const RankProgram& program) {
  std::map<std::tuple<int, int, int>, int> writers;  // By (tile, block, head).
  std::vector<int> tile_in(program.slots.size(), -1);
  std::vector<int> numbers;
  const auto visit = [&](const View& view, auto each) {
    for (const int block : view.blocks) {
      for (int head = view.heads.begin; head < view.heads.end; ++head) {
        each(std::tuple(view.tile, block, head));
      }
    }
  };
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (access(op, v) == Access::Write) continue;
      visit(op.views[v], [&](const auto& cell) {
        const auto writer = writers.find(cell);
        numbers.push_back(writer == writers.end() ? -1 : writer->second);
      });
    }
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      const View& view = op.views[v];
      if (access(op, v) == Access::Read) continue;
      int& inside = tile_in[program.tiles[view.tile].slot];
      if (inside != view.tile) {
        std::erase_if(writers,
                      [&](const auto& entry) { return std::get<0>(entry.first) == inside; });
        inside = view.tile;
      }
      visit(view, [&](const auto& cell) { writers[cell] = i; });
    }
  }
  return numbers;
}

/// Whether a tile of the caller lies in this slot.
bool is_callers(const RankProgram& program, int slot) {
  for (const auto* role : {&program.inputs, &program.outputs, &program.saved}) {
    for (const int tile : *role) {
      if (program.tiles[tile].slot == slot) return true;
    }
  }
  return false;
}

/// Whether message `i`, of one view, may be zero copy on this rank: nothing is written over the
/// view after a send; a receive fills a whole tile that is not the caller's and that no other op
/// writes.
bool rests(const RankProgram& program, int i) {
  const View& shown = program.ops[i].views[0];
  const Tile& tile = program.tiles[shown.tile];
  const bool sends = program.ops[i].kind == OpKind::Send;
  if (!sends && (is_callers(program, tile.slot) || shown.blocks.size() != tile.blocks.size() ||
                 shown.heads != tile.heads)) {
    return false;
  }
  for (int j = sends ? i + 1 : 0; j < static_cast<int>(program.ops.size()); ++j) {
    for (std::size_t v = 0; j != i && v < program.ops[j].views.size(); ++v) {
      const View& other = program.ops[j].views[v];
      if (access(program.ops[j], v) == Access::Read) continue;
      if (sends ? touch(program, shown, other) : other.tile == shown.tile) return false;
    }
  }
  return true;
}

}  // namespace

std::string_view rule_of(const Plan& plan, const Mutation& mutation, const Plan& mutant) {
  const RankProgram& before = plan.ranks[mutation.rank];
  const RankProgram& after = mutant.ranks[mutation.rank];
  if (!steps_ascend(after)) return "";
  if (mutation.kind == MutationKind::SlotReused) {
    return writers_of_reads(before) == writers_of_reads(after) ? "lives apart" : "";
  }
  if (mutation.op < 0) return "";
  const Op& op = before.ops[mutation.op];
  switch (mutation.kind) {
    case MutationKind::OtherBatch:
      if (!op.is_comm()) return "row of print";
      return batches(before) == batches(after) ? "same batches" : "other batches";
    case MutationKind::FewerBlocks:
    case MutationKind::OtherBlock:
      if (!sees_keys(op)) return "";
      return visible_pairs(plan, op) == visible_pairs(plan, after.ops[mutation.op]) ? "sees nothing"
                                                                                    : "";
    case MutationKind::OtherStart:
      return begins(plan, mutation) ? "cleared anyway" : "";
    case MutationKind::OtherZeroCopy:
      if (op.zero_copy) return "copied";
      return rests(before, mutation.op) ? "rests" : "";
    case MutationKind::Doubled:
      return repeatable(op) ? "again" : "";
    case MutationKind::Swapped:
      return rule_of_swap(before, op, before.ops[mutation.to]);
    case MutationKind::OtherTile:
      return rule_of_tile(before, op, mutation);
    default:
      return "";
  }
}

}  // namespace armillary::mutation
