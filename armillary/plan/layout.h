// layout.h: which tokens live on which rank.
//
// A layout is independent of mask and strategy. Shards may have different sizes, also zero; every
// token has exactly one owner; a rank keeps its tokens in ascending order of position.
//
//   contiguous    rank i owns [i*N/P, (i+1)*N/P)
//   zigzag        2P pieces, rank i owns pieces i and 2P-1-i, so that causal work is equal on every
//                 rank (Megatron; USP, Algorithm 2). Each token left over makes a piece one longer:
//                 first pieces P, P+1, .. 2P-1, then pieces 0, 1, ..
//   striped:W     stripes of W tokens dealt in turn (Striped Attention; Attention2D's cyclic)
//   balanced      pieces dealt out by mask area, 16 to every rank, or pieces of one token if the
//                 sequence is shorter: work is equal to a few percent, unless a single piece has
//                 more than a rank's share
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/mask/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::plan {

enum class LayoutKind : std::uint8_t { Contiguous, Zigzag, Striped, Balanced };

struct Layout {
  LayoutKind kind = LayoutKind::Contiguous;
  std::int64_t stripe = 1;  ///< Striped only: tokens per stripe, >= 1.
  bool operator==(const Layout&) const = default;
};

/// Parses `contiguous`, `zigzag`, `striped[:W]` (W = 1 if not given) or `balanced`.
/// @throws InvalidArgument with the nearest name.
Layout parse_layout(std::string_view text);
std::string to_string(const Layout& layout);

/// The tokens of every rank, in memory order: shards.q[rank] and shards.kv[rank]. With as many keys
/// as queries both are equal (projections of the same tokens). Otherwise `balanced` deals the
/// queries by area and leaves the keys contiguous. Shards are lists of pieces: zigzag gives up to
/// two runs, and neighbouring runs are NOT joined (each becomes a block of its own). Empty pieces
/// are left out.
struct Shards {
  std::vector<Runs> q;
  std::vector<Runs> kv;
};

/// Requires world >= 1 and stripe >= 1. Cost: O(world) runs; `balanced` makes 16 runs a rank and
/// computes a mask area for each. Deterministic: every rank computes the same shards.
Shards shards(const Layout& layout, const Mask& mask, int world);

}  // namespace armillary::plan
