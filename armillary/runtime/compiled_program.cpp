// Compiles a program: shapes of tiles, storage aliases, kernel calls of each op, and the batches of
// each lane with the ops that they wait for. Dependencies come from plan/hazards.h, as in verify.
#include "armillary/runtime/compiled_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/hazards.h"
#include "armillary/plan/operands.h"

namespace armillary::runtime {
namespace {

using plan::Op;
using plan::Tile;

/// {B, L, heads, dim}, or {B, L, heads} for a tensor with one number per row.
std::vector<std::int64_t> shape_of(const plan::Problem& problem, const plan::Blocks& blocks,
                                   const Tile& tile) {
  std::vector<std::int64_t> shape{problem.batch, tokens_of(blocks, tile.tensor, tile.blocks),
                                  tile.heads.count()};
  if (tile.tensor != plan::Tensor::Lse && tile.tensor != plan::Tensor::Delta) {
    shape.push_back(dim_of(problem, tile.tensor));
  }
  return shape;
}

/// Ops in batches, lane by lane, in program order.
std::vector<std::vector<Batch>> batches_of(const plan::RankProgram& program,
                                           const std::vector<int>& alias_of) {
  std::vector<std::vector<Batch>> lanes;
  std::map<plan::Lane, int> last_step;
  const std::vector<std::vector<int>> waits = dependencies(program);
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (static_cast<std::size_t>(op.lane) >= lanes.size()) lanes.resize(op.lane + 1);
    std::vector<Batch>& lane = lanes[op.lane];
    // A compute op is a batch of its own; messages with the step of the one before join its batch.
    if (!op.is_comm() || lane.empty() || last_step[op.lane] != op.step) {
      lane.push_back({.lane = op.lane, .ops = {}, .waits = {}, .inputs = {}});
      last_step[op.lane] = op.step;
    }
    // A batch waits for everything that one of its ops waits for.
    Batch& batch = lane.back();
    batch.ops.push_back(i);
    batch.waits.insert(batch.waits.end(), waits[i].begin(), waits[i].end());
    for (const plan::View& view : op.views) {
      if (alias_of[view.tile] != CompiledProgram::kInSlots) batch.inputs.push_back(view.tile);
    }
  }
  return lanes;
}

/// Storage alias of each tile (CompiledProgram::alias_of).
std::vector<int> aliases_of(const plan::RankProgram& program) {
  std::vector<int> of_slot(program.slots.size(), CompiledProgram::kInSlots);
  // Tiles of the caller are their own aliases.
  std::vector<int> alias_of(program.tiles.size(), CompiledProgram::kInSlots);
  for (const auto* role : {&program.inputs, &program.outputs, &program.saved}) {
    for (const int tile : *role) {
      of_slot[program.tiles[tile].slot] = tile;
      alias_of[tile] = tile;
    }
  }
  // Other tiles have the memory of the caller's tile in their slot.
  for (std::size_t t = 0; t < alias_of.size(); ++t) {
    if (alias_of[t] == CompiledProgram::kInSlots) alias_of[t] = of_slot[program.tiles[t].slot];
  }
  return alias_of;
}

/// The pass that a program is of: backward is given dOut, and replay the kept output.
plan::Pass pass_of(const plan::RankProgram& program) {
  const auto is_given = [&](plan::Tensor tensor) {
    return std::ranges::any_of(program.inputs,
                               [&](int tile) { return program.tiles[tile].tensor == tensor; });
  };
  if (is_given(plan::Tensor::DOut)) return plan::Pass::Backward;
  return is_given(plan::Tensor::Out) ? plan::Pass::Replay : plan::Pass::Forward;
}

/// Kernel calls of an op that attends: every query segment against every key segment, except for
/// pairs of segments without a visible (query, key) pair.
std::vector<KernelCall> calls_of(const CompiledProgram& compiled, const CompiledOp& op) {
  if (!op.op->attends() && !op.op->attends_grad()) return {};
  const plan::LocatedView& q = op.views[plan::QkvOperand::kQ];
  const plan::LocatedView& k = op.views[plan::QkvOperand::kK];
  std::vector<KernelCall> calls;
  for (std::size_t i = 0; i < q.segments.size(); ++i) {
    for (std::size_t j = 0; j < k.segments.size(); ++j) {
      kernel::Pairs pairs{.q_runs = q.segments[i].positions,
                          .k_runs = k.segments[j].positions,
                          .mask = &compiled.problem.mask,
                          .heads = {.first_q_head = q.first_global_head,
                                    .first_kv_head = k.first_global_head,
                                    .group_size = compiled.problem.group_size()}};
      if (pairs.mask->empty(pairs.q_runs, pairs.k_runs)) continue;
      pairs.prepared = compiled.kernel->prepare(pairs);
      calls.push_back({i, j, std::move(pairs)});
    }
  }
  return calls;
}

}  // namespace

std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel) {
  auto result = std::make_shared<CompiledProgram>();
  CompiledProgram& compiled = *result;
  compiled.problem = planner.problem();
  compiled.program = std::move(program);
  compiled.strategy = to_string(planner.strategy());
  compiled.pass = pass_of(compiled.program);
  compiled.kernel = &kernel;
  // Memory of the tiles.
  for (const Tile& tile : compiled.program.tiles) {
    compiled.shapes.push_back(shape_of(planner.problem(), planner.blocks(), tile));
  }
  compiled.alias_of = aliases_of(compiled.program);
  // Ops. Pointers into `compiled` stay valid, because the object is on the heap and never moves.
  for (const Op& op : compiled.program.ops) {
    CompiledOp& made = compiled.ops.emplace_back();
    made.op = &op;
    made.views = plan::locate(planner.blocks(), compiled.program, op);
    made.calls = calls_of(compiled, made);
    if (op.is_comm()) {
      made.bytes = bytes_of(planner.problem(), planner.blocks(), compiled.program, op);
    }
  }
  compiled.lanes = batches_of(compiled.program, compiled.alias_of);
  return result;
}

std::string describe(const CompiledProgram& compiled, int op) {
  const Op& action = *compiled.ops[op].op;
  std::string text = fmt::format("{} {} step {}: {}", compiled.strategy, to_string(compiled.pass),
                                 action.step, to_string(action.kind));
  for (const plan::View& view : action.views) {
    std::string blocks;
    for (const plan::IdRun& run : view.blocks.runs()) {
      blocks += fmt::format("{}{}", blocks.empty() ? "" : ",", run.first);
      if (run.last > run.first) blocks += fmt::format("-{}", run.last);
    }
    text += fmt::format(" {}{{{}}}", to_string(compiled.program.tiles[view.tile].tensor), blocks);
  }
  if (!action.is_comm()) return text;
  return text + fmt::format(" {} bytes {} rank {} on lane {}", compiled.ops[op].bytes,
                            action.kind == plan::OpKind::Send ? "to" : "from", action.peer,
                            action.lane);
}

}  // namespace armillary::runtime
