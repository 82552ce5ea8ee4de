// storage.h: what a rank stores of parameters, gradients and the optimizer's state, to the byte.
//
//   stage   weight     gradient   state      bytes of n values, fp32, N replicas
//   0       all        all        all        16 n
//   1       all        all        shard      8 n + 8 n / N
//   2       all        shard      shard      4 n + 12 n / N
//   3       shard      shard      shard      16 n / N
//
// Values that are narrower than their masters rest beside these in stages 0 to 2, where masters are
// with the state; shards of stage 3 are masters. Gradients that are rounded to travel do not count.
//
// With state on the host its bytes are there, and up to two units' in buffers on the device, from
// the move that fetches one to the move back.
//
// n / N stands for a rank's shard. Beside these, stages 2 and 3 have whole gradients of the units
// that run backward, stage 3 whole weights of the units that run: transient tiles, from the op that
// writes them to their release. A reduce_scatter that adds to a shard has room for what it adds, as
// long as the whole gradient is there.
#pragma once

#include <vector>

#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

// The shards of a rank's resting tiles of a unit.
Heads weight_shards(const StepTables& tables, int unit, Rank rank);
Heads grad_shards(const StepTables& tables, int unit, Rank rank);
Heads state_shards(const StepTables& tables, int unit, Rank rank);

/// The caller's tiles in the order of RankProgram::inputs and outputs, without slots. Inputs:
/// weight and state of each unit that has values, then x of border 0 of each microbatch. Outputs:
/// weights and states again, then loss and norm.
std::vector<Tile> input_tiles(const StepTables& tables, Rank rank);
std::vector<Tile> output_tiles(const StepTables& tables, Rank rank);

/// True for a weight or gradient that does not rest, and for a buffer.
bool is_transient(const StepTables& tables, Rank rank, const Tile& tile);

/// Bytes of a tile of weights, gradients, state or a buffer; 0 of any other. Requires a tile that
/// fits the tables.
std::int64_t bytes_of(const StepTables& tables, Rank rank, const Tile& tile);

/// Bytes of weights, gradients and state on the device, without activations.
struct StepBytes {
  std::int64_t rest = 0;
  /// The most at one time, of a rank that takes the memory of a transient tile when it comes to the
  /// op that writes it, and frees it at its release, in program order.
  std::int64_t peak = 0;
  std::int64_t host = 0;  ///< State that rests on the host.
  bool operator==(const StepBytes&) const = default;
};

/// Bytes of a program. Requires that its tiles fit the tables.
StepBytes bytes_of(const StepTables& tables, const RankProgram& program);

/// The closed form of the table above, for all units of a rank; and of that what is on the host.
std::int64_t resting_bytes(const StepTables& tables, Rank rank);
std::int64_t host_bytes(const StepTables& tables, Rank rank);

}  // namespace armillary::plan::step
