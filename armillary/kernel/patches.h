// patches.h: the rectangles that a kernel call works on, and what is hidden inside them.
//
// A call's queries and keys are cut into strips of some hundred rows; a patch is a query strip
// against a key strip. Only patches with a visible pair exist, so what no band touches costs
// nothing. No tensors here: positions in, row numbers out.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::kernel {

/// Neighbouring rows of a tensor and the positions they stand for.
struct Strip {
  plan::Interval rows;
  plan::Runs runs;
};

/// Cuts `runs` in memory order into strips of at most `limit` >= 1 rows. Where a run ends, a strip
/// that is at least half full ends too: rows far apart see different keys, and patches of one piece
/// are more often wholly visible or wholly hidden.
std::vector<Strip> cut(const plan::Runs& runs, std::int64_t limit);

struct Patch {
  std::size_t q = 0;   ///< Number of the query strip.
  std::size_t k = 0;   ///< Number of the key strip.
  bool whole = false;  ///< Every pair is visible: no mask work.
};

struct Patches {
  std::vector<Strip> q;
  std::vector<Strip> k;
  std::vector<Patch> visible;  ///< Patches with a visible pair, by query strip, then key strip.
};

struct PatchLimits {
  std::int64_t q_rows = 0;
  std::int64_t k_rows = 0;
};

/// Cost: one mask area per pair of strips; nothing for a query strip that sees no key at all.
Patches find_patches(const plan::Mask& mask, const plan::Runs& q_runs, const plan::Runs& k_runs,
                     PatchLimits limits);

/// Key rows [begin, end) of strip `k` that query row `q_row` of strip `q` sees; rows are counted
/// from the start of the strip.
struct VisibleKeys {
  std::int64_t q_row = 0;
  plan::Interval k_rows;
};

/// All visible pairs of a patch, each once. A query has several ranges where keys lie in several
/// runs, or bands leave gaps; none where it sees nothing. Cost: O(log keys) per query row, run of
/// keys and band near it, and O(bands) once.
std::vector<VisibleKeys> visible_keys(const plan::Mask& mask, const Strip& q, const Strip& k);

}  // namespace armillary::kernel
