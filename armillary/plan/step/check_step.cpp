// The rules in order: the words, those of the machine with `shards`, the order of joint ops, the
// caller's tiles and bytes, then the run on types in an order of actions that respects every wait.
#include "armillary/plan/step/check_step.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/step/step_meaning.h"
#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

/// Rule `shards` for one view, and that borders are shown whole. The text of the fault, or none.
std::optional<std::string> shard_fault(const StepTables& tables, const RankProgram& program,
                                       const Op& op, const View& view) {
  const Tile& tile = program.tiles[view.tile];
  if (step_words()[tile.tensor].side == kBorderSide) {
    const bool one = plan::is_whole(tile, view) && view.blocks.size() == 1;
    if (one && view.heads.count() == 1) return std::nullopt;
    return "one whole border of one microbatch is required";
  }
  const int unit = tables.parts()[view.blocks.front()].unit;
  const auto is_legal = [&](const Heads& heads) {
    return heads == tables.all_shards(unit) || heads == tables.own_shard(unit, program.rank);
  };
  if (!is_legal(view.heads) || !is_legal(tile.heads)) {
    return "all shards, or the rank's own, are required";
  }
  const BlockIds& parts = tables.parts_of(unit);
  const bool takes_some = op.kind == StepOp::AllReduce || op.kind == StepOp::Norm;
  if (view.blocks == parts || (takes_some && includes(parts, view.blocks))) return std::nullopt;
  return "a whole unit is required";
}

/// Rule `shards` for one op.
void check_shards(const StepTables& tables, const RankProgram& program, int i,
                  Diagnostics& diagnostics) {
  const Op& op = program.ops[i];
  if (op.is_comm()) {
    diagnostics.add(program.rank, i, "shards", "is a message; a step has joint ops");
    return;
  }
  for (const View& view : op.views) {
    const std::optional<std::string> text = shard_fault(tables, program, op, view);
    if (!text) continue;
    diagnostics.add(program.rank, i, "shards", "shows {}; {}", describe(program, view), *text);
    return;
  }
}

/// A joint op of a rank.
struct JointPlace {
  Rank rank = 0;
  int op = 0;
  Lane lane = 0;
};

/// Rule `lanes`. The machine has matched the ops of a group lane by lane, so all of its ranks have
/// as many, and lanes tell them apart.
void check_lanes(const World& world, Diagnostics& diagnostics) {
  using ByGroup = std::map<std::vector<Rank>, std::vector<JointPlace>>;
  ByGroup models;  // The first rank of each group.
  for (const RankProgram& program : world.ranks) {
    ByGroup mine;
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      const Op& op = program.ops[i];
      if (!step_words()[op.kind].joint) continue;
      mine[program.groups[op.peer]].push_back({program.rank, i, op.lane});
    }
    for (const auto& [group, ops] : mine) {
      const std::vector<JointPlace>& model = models.try_emplace(group, ops).first->second;
      const auto [other, own] =
          std::ranges::mismatch(model, ops, {}, &JointPlace::lane, &JointPlace::lane);
      if (own == ops.end()) continue;
      diagnostics.add(program.rank, own->op, "lanes",
                      "is on lane {}; rank {} comes to one of lane {} here, its op {}", own->lane,
                      other->rank, other->lane, other->op);
    }
  }
}

/// True if these tiles of a program are the expected ones, in slots of the caller.
bool are_tiles(const RankProgram& program, const std::vector<int>& ids,
               const std::vector<Tile>& expected) {
  return std::ranges::equal(ids, expected, [&](int id, const Tile& tile) {
    const Tile& there = program.tiles[id];
    return there.tensor == tile.tensor && there.heads == tile.heads &&
           there.blocks == tile.blocks && program.slots[there.slot].external;
  });
}

/// The rules `caller` and `bytes` for one rank.
void check_storage(const StepTables& tables, const RankProgram& program, Diagnostics& diagnostics) {
  const Rank rank = program.rank;
  if (!are_tiles(program, program.inputs, input_tiles(tables, rank))) {
    diagnostics.add(rank, -1, "caller", "the inputs are not those of the shape");
  }
  if (!are_tiles(program, program.outputs, output_tiles(tables, rank))) {
    diagnostics.add(rank, -1, "caller", "the outputs are not those of the shape");
  }
  for (const Tile& tile : program.tiles) {
    if (step_words()[tile.tensor].side != kUnitSide) continue;
    const int unit = tables.parts()[tile.blocks.front()].unit;
    const bool fits =
        tile.heads == tables.all_shards(unit) || tile.heads == tables.own_shard(unit, rank);
    if (!fits) diagnostics.add(rank, -1, "shards", "a tile has some of the shards");
  }
  if (!diagnostics.empty()) return;
  const StepBytes bytes = bytes_of(tables, program);
  const std::int64_t rest = bytes.rest + bytes.host;
  const std::int64_t required = resting_bytes(tables, rank);
  if (rest == required && bytes.host == host_bytes(tables, rank)) return;
  diagnostics.add(rank, -1, "bytes", "{} bytes rest here; ZeRO stage {} has {}", rest,
                  tables.zero(), required);
}

}  // namespace

std::vector<Diagnostic> check_step(const World& world, const StepShape& shape, int limit) {
  ARMILLARY_CHECK(limit >= 1);
  const StepTables tables(shape);
  Diagnostics diagnostics(limit);
  if (static_cast<int>(world.ranks.size()) != shape.mesh.ranks()) {
    diagnostics.add(-1, -1, "caller", "{} programs for a mesh of {} ranks", world.ranks.size(),
                    shape.mesh.ranks());
  }
  for (const RankProgram& program : world.ranks) {
    if (program.words == &step_words()) continue;
    diagnostics.add(program.rank, -1, "caller", "the program is not in the words of a step");
  }
  if (!diagnostics.empty()) return diagnostics.take();
  // Structure.
  const auto actions =
      check(world, diagnostics, [&](const RankProgram& program, int op, Diagnostics& faults) {
        check_shards(tables, program, op, faults);
      });
  if (!actions) return diagnostics.take();
  check_lanes(world, diagnostics);
  for (const RankProgram& program : world.ranks) check_storage(tables, program, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  // Meaning.
  StepMeaning meaning(world, tables, diagnostics);
  for (std::size_t begin = 0; begin < actions->size();) {
    std::size_t end = begin + 1;
    const int joint = (*actions)[begin].joint;
    while (joint >= 0 && end < actions->size() && (*actions)[end].joint == joint) ++end;
    meaning.run(std::span(*actions).subspan(begin, end - begin));
    if (!diagnostics.empty()) return diagnostics.take();
    begin = end;
  }
  meaning.check_end();
  return diagnostics.take();
}

}  // namespace armillary::plan::step
