// Prepares a program: shapes of tiles, storage aliases, and the batches of each lane with the ops
// that they wait for. Batches come from plan/program/batches.h and waits from
// plan/program/hazards.h, as in the proof.
#include "armillary/runtime/machine_program.h"

#include <fmt/format.h>

#include <span>

#include "armillary/core/count_text.h"
#include "armillary/plan/program/batches.h"
#include "armillary/plan/program/hazards.h"

namespace armillary::runtime {
namespace {

using plan::Op;
using plan::Tile;

/// {B, L, heads, dim}, or {B, L, heads} for a tensor with one number per row.
std::vector<std::int64_t> shape_of(const plan::Measures& measures, const Tile& tile) {
  const plan::TensorMeasure& tensor = measures[tile.tensor];
  std::vector<std::int64_t> shape{measures.batch(), measures.tokens(tile.tensor, tile.blocks),
                                  tile.heads.count()};
  if (!tensor.scalar) shape.push_back(tensor.dim);
  return shape;
}

/// The batches of each lane, with all that they wait for and all tiles of the caller they touch.
std::vector<std::vector<MachineBatch>> lanes_of(const plan::RankProgram& program,
                                                const std::vector<int>& alias_of) {
  const plan::Batches batches(program);
  const std::vector<std::vector<int>> waits = dependencies(program);
  std::vector<std::vector<MachineBatch>> lanes(batches.first().size());
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (int b = batches.first()[lane]; b >= 0; b = batches[b].next) {
      const std::span<const int> ops = batches.ops(batches[b]);
      MachineBatch& batch = lanes[lane].emplace_back(MachineBatch{
          .lane = batches[b].lane, .ops = {ops.begin(), ops.end()}, .waits = {}, .inputs = {}});
      for (const int i : ops) {
        batch.waits.insert(batch.waits.end(), waits[i].begin(), waits[i].end());
        for (const plan::View& view : program.ops[i].views) {
          if (alias_of[view.tile] != MachineProgram::kInSlots) batch.inputs.push_back(view.tile);
        }
      }
    }
  }
  return lanes;
}

/// Storage alias of each tile (MachineProgram::alias_of).
std::vector<int> aliases_of(const plan::RankProgram& program) {
  std::vector<int> of_slot(program.slots.size(), MachineProgram::kInSlots);
  // Tiles of the caller are their own aliases.
  std::vector<int> alias_of(program.tiles.size(), MachineProgram::kInSlots);
  for (const auto* role : {&program.inputs, &program.outputs, &program.saved}) {
    for (const int tile : *role) {
      of_slot[program.tiles[tile].slot] = tile;
      alias_of[tile] = tile;
    }
  }
  // Other tiles have the memory of the caller's tile in their slot.
  for (std::size_t t = 0; t < alias_of.size(); ++t) {
    if (alias_of[t] == MachineProgram::kInSlots) alias_of[t] = of_slot[program.tiles[t].slot];
  }
  return alias_of;
}

}  // namespace

void prepare(MachineProgram& result, int world, const plan::Measures& measures,
             const Locate& locate) {
  const plan::RankProgram& program = result.program;
  plan::expect_no_joint_ops("run", program);
  result.world = world;
  result.batch = measures.batch();
  if (result.strategy.empty()) result.strategy = result.words().name;
  result.caller_tiles = program.inputs;
  for (const Tile& tile : program.tiles) {
    result.dtypes.push_back(measures.dtype(tile));
    result.shapes.push_back(shape_of(measures, tile));
  }
  result.alias_of = aliases_of(program);
  for (const Op& op : program.ops) {
    CompiledOp& compiled = result.ops.emplace_back();
    compiled.op = &op;
    compiled.views = locate ? locate(op) : plan::locate(measures, program, op);
    if (op.is_comm()) compiled.bytes = measures.bytes(program, op);
  }
  result.lanes = lanes_of(program, result.alias_of);
}

std::string describe(const MachineProgram& compiled, int op) {
  const Op& action = *compiled.ops[op].op;
  std::string text =
      fmt::format("{} {} step {}: {}", compiled.strategy, compiled.words().passes[compiled.pass],
                  action.step, compiled.words()[action.kind].name);
  for (const plan::View& view : action.views) {
    std::string blocks;
    for (const plan::IdRun& run : view.blocks.runs()) {
      blocks += fmt::format("{}{}", blocks.empty() ? "" : ",", run.first);
      if (run.last > run.first) blocks += fmt::format("-{}", run.last);
    }
    text += fmt::format(" {}{{{}}}",
                        compiled.words()[compiled.program.tiles[view.tile].tensor].name, blocks);
  }
  if (!action.is_comm()) return text;
  return text + fmt::format(" {} {} rank {} on lane {}", count_of(compiled.ops[op].bytes, "byte"),
                            action.kind == plan::kSend ? "to" : "from", action.peer, action.lane);
}

}  // namespace armillary::runtime
