// relayout_program.h: the programs that bring a cache from one layout to another. Step l moves K
// and V of layer l, so it may run beside the prefill of the layers behind it.
//
//   each layer   one message of K and V for each two ranks that share a part, all on lane 1 in one
//                batch; what a rank keeps is copied
//
// Steps: the layers. Sent: every (layer, head, position) that changes its rank, once for each rank
// that gets it. Buffers: none, values go from the old place to the new one. Nothing is decided
// later.
#pragma once

#include <vector>

#include "armillary/plan/program/measures.h"
#include "armillary/plan/relayout/shape.h"

namespace armillary::plan::relayout {

/// Sizes of K and V.
Measures relayout_measures(const RelayoutTables& tables);

struct Relayout {
  RelayoutTables tables;
  Measures measures;
  std::vector<RankProgram> ranks;

  /// Refers to this object.
  World world() const { return {measures, ranks}; }
};

/// The program of one rank. `measures` are relayout_measures(tables).
RankProgram rank_program(const RelayoutTables& tables, const Measures& measures, Rank rank);

/// The programs of all ranks. @throws InvalidArgument as check_shape().
Relayout build_relayout(const RelayoutShape& shape);

/// Bytes of all messages of some programs, as their senders have them.
std::int64_t sent_bytes(const World& world);

}  // namespace armillary::plan::relayout
