// machine_program.h: the program of one rank in any words, prepared so that it can run many times.
//
//   RankProgram --prepare--> tiles      shape, and the caller's tile whose memory it uses
//                            ops        views located in their tiles
//                            batches    ops that start together, by lane, with all they wait for
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/segments.h"

namespace armillary::runtime {

/// Ops that start together: one compute op, or the messages of one step of a communication lane.
struct MachineBatch {
  plan::Lane lane = plan::kCompute;
  std::vector<int> ops;
  std::vector<int> waits;   ///< ops that must be complete before the batch starts
  std::vector<int> inputs;  ///< tiles in external slots; the inputs among them must be fed before
};

/// An op whose views are located in memory.
struct CompiledOp {
  const plan::Op* op = nullptr;
  std::vector<plan::LocatedView> views;  ///< one per operand
  std::int64_t bytes = 0;                ///< of a message, all batch entries
};

/// A program that a Machine runs (machine.h). It must not be copied or moved after prepare(),
/// because `ops` point into `program`.
struct MachineProgram {
  plan::RankProgram program;
  int world = 1;
  std::int64_t batch = 1;
  std::string strategy;  ///< as plan::parse_strategy reads it; else the name of the vocabulary
  int pass = 0;          ///< index into the passes of the vocabulary, for errors and flight records
  std::vector<int> caller_tiles;    ///< filled by the caller: inputs, in backward also saved tiles
  std::vector<plan::Dtype> dtypes;  ///< of each tile
  /// Shape of each tile: {B, L, heads, dim}, or {B, L, heads} for tensors without a dim.
  std::vector<std::vector<std::int64_t>> shapes;
  /// Storage alias of each tile: the tile of the caller (input, output or saved) whose memory it
  /// uses. That is the tile itself, or the one that has the same external slot; kInSlots if the
  /// tile uses the memory of its own slot.
  std::vector<int> alias_of;
  static constexpr int kInSlots = -1;
  std::vector<CompiledOp> ops;
  std::vector<std::vector<MachineBatch>> lanes;  ///< batches of each lane in order; lane 0 computes

  const plan::Vocabulary& words() const { return *program.words; }
};

/// Locates the views of an op.
using Locate = std::function<std::vector<plan::LocatedView>(const plan::Op& op)>;

/// Fills `result` from its program, which must be `well_formed` (plan/program/check.h).
/// `caller_tiles` are the inputs then. Without `locate`, views are located by `measures`.
/// @throws InvalidArgument for joint ops (plan/program/vocabulary.h), which are not run yet.
void prepare(MachineProgram& result, int world, const plan::Measures& measures,
             const Locate& locate = {});

/// An op in words, for errors: `ring backward step 3: recv dk{4} 65536 bytes from rank 2 on lane
/// 1`.
std::string describe(const MachineProgram& compiled, int op);

}  // namespace armillary::runtime
