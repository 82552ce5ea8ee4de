#include "armillary/runtime/compiled_program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/hazards.h"

namespace armillary::runtime {
namespace {

using plan::Op;
using plan::Tile;

std::vector<std::int64_t> shape_of(const plan::Problem& problem, const plan::Blocks& blocks,
                                   const Tile& tile) {
  std::vector<std::int64_t> shape{problem.batch, tokens_of(blocks, tile.tensor, tile.blocks),
                                  tile.heads.count()};
  if (tile.tensor != plan::Tensor::Lse && tile.tensor != plan::Tensor::Delta) {
    shape.push_back(dim_of(problem, tile.tensor));
  }
  return shape;
}

std::vector<std::vector<Batch>> batches_of(const plan::RankProgram& program) {
  std::vector<std::vector<Batch>> lanes;
  std::map<plan::Lane, int> last_step;
  const std::vector<std::vector<int>> waits = dependencies(program);
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (static_cast<std::size_t>(op.lane) >= lanes.size()) lanes.resize(op.lane + 1);
    std::vector<Batch>& lane = lanes[op.lane];
    if (!op.is_comm() || lane.empty() || last_step[op.lane] != op.step) {
      lane.push_back({.lane = op.lane, .ops = {}, .waits = {}, .inputs = {}});
      last_step[op.lane] = op.step;
    }
    Batch& batch = lane.back();
    batch.ops.push_back(i);
    batch.waits.insert(batch.waits.end(), waits[i].begin(), waits[i].end());
    for (const plan::View& view : op.views) {
      if (program.slots[program.tiles[view.tile].slot].external) batch.inputs.push_back(view.tile);
    }
  }
  return lanes;
}

/// What comes from or goes to the caller has memory of its own in every run, and so has what lies
/// in a slot of the caller.
std::vector<int> homes_of(const plan::RankProgram& program) {
  std::vector<int> of_slot(program.slots.size(), CompiledProgram::kInSlots);
  std::vector<int> home(program.tiles.size(), CompiledProgram::kInSlots);
  for (const auto* role : {&program.inputs, &program.outputs, &program.saved}) {
    for (const int tile : *role) {
      const int slot = program.tiles[tile].slot;
      if (program.slots[slot].external) of_slot[slot] = tile;
      home[tile] = tile;
    }
  }
  for (std::size_t t = 0; t < home.size(); ++t) {
    if (home[t] == CompiledProgram::kInSlots) home[t] = of_slot[program.tiles[t].slot];
  }
  return home;
}

/// The kernel calls of an op that attends: every segment of queries against every one of keys.
std::vector<KernelCall> calls_of(const CompiledProgram& compiled, const CompiledOp& op) {
  if (!op.op->attends() && !op.op->attends_grad()) return {};
  const plan::LocatedView& q = op.views[0];
  const plan::LocatedView& k = op.views[1];
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
  compiled.kernel = &kernel;
  for (const Tile& tile : compiled.program.tiles) {
    compiled.shapes.push_back(shape_of(planner.problem(), planner.blocks(), tile));
  }
  compiled.home = homes_of(compiled.program);
  for (const Op& op : compiled.program.ops) {
    CompiledOp& made = compiled.ops.emplace_back();
    made.op = &op;
    made.views = plan::locate(planner.blocks(), compiled.program, op);
    made.calls = calls_of(compiled, made);
  }
  compiled.lanes = batches_of(compiled.program);
  return result;
}

}  // namespace armillary::runtime
