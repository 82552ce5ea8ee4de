// attention_memory.h: bytes of one call of attention, those that a layer keeps of it, and whether a
// problem fits the devices of a cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/step.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::cost {

/// Bytes that the attention of one layer needs on a rank: tensors of the caller and slots, in the
/// pass that needs most. Parameters and activations of a model are not part of it.
struct MemoryNeed {
  plan::Rank rank = 0;  ///< The rank that needs most.
  std::int64_t bytes = 0;
};
/// Cost: the programs of all ranks.
MemoryNeed memory_need(const plan::Planner& planner, const std::vector<plan::Pass>& passes);
/// The need of one rank.
std::int64_t memory_need(const plan::Planner& planner, const std::vector<plan::Pass>& passes,
                         plan::Rank rank);

/// Bytes of the slots of one rank that are not tensors of the caller, in the pass that needs most.
std::int64_t slot_need(const plan::Planner& planner, const std::vector<plan::Pass>& passes,
                       plan::Rank rank);

/// Bytes of the attention of one layer that a rank keeps from forward to backward.
struct KeptBytes {
  // As the caller's tensors, which a model counts (model.h).
  std::int64_t caller = 0;         ///< Q, K, V, Out and the log-sum-exps of its rows.
  std::int64_t caller_output = 0;  ///< The last two alone.
  // As forward saves them. Strategies that trade heads for tokens save tensors of their own.
  std::int64_t layer = 0;   ///< All of them, and the caller's Out if that is another tensor.
  std::int64_t output = 0;  ///< Out and log-sum-exps, as a recomputed layer keeps them.

  /// Takes the larger of each.
  void grow(const KeptBytes& other);
};
/// The bytes of one rank, from its forward program.
KeptBytes kept_by_attention(const plan::Problem& problem, const plan::Blocks& blocks,
                            const plan::RankProgram& forward);
/// The same, making that program.
KeptBytes kept_by_attention(const plan::Planner& planner, plan::Rank rank);

/// Slots, and what is kept beyond the caller's tensors, each of the rank that has most.
AttentionBytes attention_bytes(double slots, const KeptBytes& kept_bytes);

/// `does not fit: needs 22.51 GiB, has 22.50`: the need rounded up, the limit down, so that they
/// differ.
std::string does_not_fit(double needed_bytes, double limit_bytes);

/// A problem that is to fit.
struct FitQuestion {
  /// The same problem with so many tokens; nothing if its mask cannot have that length.
  std::function<std::optional<plan::Problem>(std::int64_t seq)> problem;
  std::int64_t seq = 0;  ///< The length that is asked about.
  plan::Strategy strategy;
  std::vector<plan::Pass> passes;
};

/// Does nothing if every rank's need is at most the memory of a device.
/// @throws InvalidArgument: ".. does not fit: needs X GiB, has Y, the longest sequence that fits is
/// Z". All ranks fit with Z tokens; Z is left out if the mask has one length only.
void check_fits(const FitQuestion& question, const sim::Cluster& cluster);

}  // namespace armillary::cost
