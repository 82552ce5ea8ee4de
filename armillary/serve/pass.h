// pass.h: one pass of a model over new tokens of some sessions, whose K and V join the cache.
//
//   run_spread       tokens are spread over ranks (spread_pass.cpp): attention of the new tokens
//                    among themselves, by any strategy, merged with attention to the cached ones
//   run_replicated   every rank computes all tokens, keys are spread (replicated_pass.cpp): one
//                    exchange of (out, lse) a layer; decode, and chunks of few tokens
//   run_gathered     the same, but each rank projects some of the tokens and Q, K, V are gathered
//                    (gathered_pass.cpp): two exchanges a layer
//
// All compute softmax attention over all tokens of a session, or over those in the window of a
// layer, up to rounding: results of the two calls, or of the ranks, are merged in fp32 and in a
// fixed order. Keys that no window of a layer reaches are neither read nor sent in it.
//
// Ranks along tp are groups of such ranks side by side: each has its heads of the same tokens, its
// own cache, and its part of the matrices (model/tensor_parallel.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/program/program.h"
#include "armillary/serve/kv_cache.h"
#include "armillary/serve/windows.h"

namespace armillary::serve {

/// New tokens of one session.
struct PassPart {
  SessionId session = 0;
  std::span<const std::int64_t> tokens;
  bool is_last = true;  ///< The features of its last token are asked for.
};

/// Everything that passes have in common. Refers to the objects.
struct PassContext {
  comm::Communicator& comm;
  KvCache& cache;
  model::Model& model;
  std::function<model::Weights(int unit)> use;
  std::shared_ptr<model::TensorParallel> tensor_parallel;  ///< Null: no ranks along tp.
  plan::Layout layout;   ///< The tokens of a spread pass over the ranks.
  std::string strategy;  ///< Attention among the new tokens of a spread pass.
  /// This rank's program of the exchange in a layer of a replicated pass, of a proved plan of one
  /// layer and one token (plan/decode).
  const plan::RankProgram& exchange;
  const KeyWindows& windows;
  /// Called in a spread pass behind the attention of a layer, whose K and V are in the cache; may
  /// be null. No call of attention is in progress then.
  std::function<void(int layer)> on_layer = {};
};

/// The features [parts, E], in front of the last unit, of the last token of each part that asks for
/// them, on all ranks the same bits. Parts are of different sessions and not empty. Without a
/// graph. Collective, along tp too. If it throws, sessions have the tokens that they had before.
/// @throws InvalidArgument as KvCache::begin_append, on all ranks alike; any other error ends the
/// group.
at::Tensor run_spread(const PassContext& context, std::span<const PassPart> parts);
at::Tensor run_replicated(const PassContext& context, std::span<const PassPart> parts);
at::Tensor run_gathered(const PassContext& context, std::span<const PassPart> parts);

/// The logits [B, V] of such features. Sends nothing but along tp.
at::Tensor logits_of(const PassContext& context, const at::Tensor& features_BE);

// Internal to the passes.

/// The appends of a pass: they end together, or are dropped with the object.
class PassAppends {
 public:
  explicit PassAppends(KvCache& cache) : cache_(cache) {}
  PassAppends(const PassAppends&) = delete;
  PassAppends& operator=(const PassAppends&) = delete;
  ~PassAppends();
  void begin(SessionId session, const plan::relayout::CacheExtent& extent);
  /// Rows of this rank for the new tokens of all parts, part after part.
  std::vector<plan::Interval> rows() const;
  void end();

 private:
  KvCache& cache_;
  std::vector<SessionId> sessions_;
};

/// The tokens of all parts, one after the other.
std::vector<std::int64_t> packed_tokens(std::span<const PassPart> parts);
/// Position in its session of each packed token.
std::vector<std::int64_t> packed_positions(const KvCache& cache, std::span<const PassPart> parts);

/// Runs all units but the last on some tokens, which are given with their positions: x [1, L, E],
/// on all ranks along tp.
at::Tensor features_of(const PassContext& context, const std::vector<std::int64_t>& tokens,
                       const std::vector<std::int64_t>& positions, const model::Attend& attend);

}  // namespace armillary::serve
