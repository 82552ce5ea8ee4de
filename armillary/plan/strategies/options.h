// options.h: the options of the named strategies, a struct for each.
//
//   usp:u=4,inner=ring  --parse_strategy-->  {"usp", UspOptions{.u = 4, .inner = UspInner::Ring}}
//
// A member that is 0 by default must be given where its key is required. Which values are legal for
// a problem is said by the strategy's `check`.
#pragma once

#include <array>
#include <cstdint>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/movement.h"

namespace armillary::plan {

/// The side that travels on the columns in backward: K, V as in forward, the query side, or
/// whichever sends less with the heads and the mask of the problem.
enum class BackwardSide : std::uint8_t { Kv, Q, Cheaper };

struct RingOptions {
  BackwardSide backward = BackwardSide::Kv;
};

struct AllgatherOptions {
  int slices = 1;  ///< Parts in which the KV heads are gathered, at most as many as heads.
};

struct UlyssesOptions {
  bool packed = false;  ///< Q, K, V leave in one all-to-all.
};

/// The axis on neighbouring ranks.
enum class UspInner : std::uint8_t { Ulysses, Ring };

struct UspOptions {
  int u = 0;  ///< Ways over heads.
  UspInner inner = UspInner::Ulysses;
  bool packed = false;
  BackwardSide backward = BackwardSide::Kv;
};

struct DoubleRingOptions {
  int window = 0;  ///< Ranks of an inner ring.
};

struct TokenringOptions {
  int nodes = 1;
  bool ring_inside = false;  ///< K, V walk inside the nodes and Q between them.
  bool tiles_stay = false;   ///< A rank keeps the queries of its node instead of resending them.
};

struct Attention2dOptions {
  int rows = 0;
  bool overlap = false;
};

struct StartrailOptions {
  int c = 0;                  ///< Ranks of a team.
  bool rings_inside = false;  ///< Rings on neighbouring ranks (p2p_intra) instead of teams.
};

struct GridOptions {
  int u = 0;   ///< Ways over heads.
  int rq = 0;  ///< Ways over queries.
  int rk = 0;  ///< Ways over keys.
  Movement row = Movement::Gather;
  Movement column = Movement::Ring;
  int window = 0;  ///< The window of a column that is a double ring; 0 for others.
  std::array<GridAxis, 3> nesting = Grid().nesting;
  BackwardSide backward = BackwardSide::Cheaper;
};

struct AutomaticOptions {
  bool traffic = false;  ///< Choose by the bytes that are sent.
};

}  // namespace armillary::plan
