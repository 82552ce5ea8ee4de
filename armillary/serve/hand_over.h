// hand_over.h: a session on its way to another layout, layer by layer: as one call (relayout of
// sessions.h), or beside the prefill of the layers behind. Internal to sessions.cpp.
//
//   layer 0   attention --start(0)--> K, V travel ----------------------.
//   layer 1               attention --start(1)--> K, V travel ----------+
//   ..                                                                  '--> finish() --> pages
#pragma once

#include <cstdint>
#include <list>
#include <optional>

#include "armillary/comm/communicator.h"
#include "armillary/plan/relayout/cache_layout.h"
#include "armillary/serve/cache_move.h"
#include "armillary/serve/kv_cache.h"

namespace armillary::serve {

/// @throws InvalidArgument for a layout of head groups or stages, which sessions do not have.
void check_token_layout(const plan::relayout::CacheLayout& layout);

/// Collective: all ranks start and finish the same layers in the same order, between the same calls
/// of attention. Refers to its arguments.
class HandOver {
 public:
  /// Both layouts have all tokens of the session when it finishes. @throws InvalidArgument as
  /// check_token_layout and plan::relayout::check_shape.
  HandOver(comm::Communicator& comm, KvCache& cache, SessionId session,
           const plan::relayout::CacheLayout& from, const plan::relayout::CacheLayout& to);

  /// Starts layers from 0 on, of `layers`, whose K and V are in the cache. The first call plans
  /// and proves. @throws PlanError as CacheMove.
  void start(int layer, int layers);
  /// Waits for all layers, in their order, and gives the session the new layout. Its tokens are
  /// those of `from` now; what has arrived has memory of its own until then. Returns the bytes that
  /// all ranks sent. @throws InvalidArgument for a cache without room, with the session as it was.
  std::int64_t finish();
  /// Both, one layer at a time, of so many. @throws as both; no byte moves without room.
  std::int64_t move_at_once(int layers);

 private:
  void plan(int layers);
  LayerKv own(int layer) const;

  comm::Communicator& comm_;
  KvCache& cache_;
  const SessionId session_;
  const plan::relayout::CacheLayout from_;
  const plan::relayout::CacheLayout to_;
  const std::int64_t first_;          ///< The first position that moves.
  std::vector<plan::Interval> rows_;  ///< Those of this rank, from there on.
  std::optional<CacheMove> move_;
  std::list<CacheMove::LayerMove> moves_;  ///< By layer.
};

}  // namespace armillary::serve
