// cost.h: seconds of compute ops. The engine asks a CostModel; presets, calibrated files and
// measured tables are models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/program/block_ids.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::sim {

/// Work of one compute op, counted in the plan. Counts include all batch entries and heads.
struct OpWork {
  plan::OpKind kind = plan::OpKind::Clear;
  /// Visible (query head, query, key) triples of ops that attend, in pairs of blocks that the mask
  /// shows wholly, and in pairs that an edge of the mask cuts.
  double full_pairs = 0;
  double cut_pairs = 0;
  /// Rows of query heads at slanted edges of the mask (mask_edges.h), and the size of the causal
  /// block that has as many keys a row; both only if they were asked for.
  double edge_rows = 0;
  double edge_tokens = 0;
  double q_tokens = 0;  ///< Queries and keys of ops that attend.
  double kv_tokens = 0;
  double flops = 0;  ///< 2 (d + e) for each visible pair, backward 6 d + 4 e.
  /// Elements of accumulators that an op that attends adds to, of queries and keys that it sees
  /// pairs of: Out, or DQ and DK with DV. None where the op begins the sum.
  double q_sums = 0;
  double kv_sums = 0;
  double bytes = 0;  ///< Memory read and written by ops that do not attend; 0 in place.
};

/// Counts the work of ops of one plan. Threads may share it.
class WorkCounter {
 public:
  /// Both must outlive the counter. `with_edges`: also OpWork::edge_rows.
  WorkCounter(const plan::Problem& problem, const plan::Blocks& blocks, bool with_edges);
  /// Work of an op of the compute lane. Several threads may ask at once. Cost: one mask area for
  /// each pair of blocks, and mask_edges() if asked for, none for a mask that hides nothing; large
  /// lists that an op before had are looked up, for the head groups of a grid attend with equal
  /// blocks.
  OpWork of(const plan::RankProgram& program, const plan::Op& op) const;

 private:
  /// Blocks of queries and of keys.
  using Lists = std::pair<plan::BlockIds, plan::BlockIds>;
  struct HashOfLists {
    std::size_t operator()(const Lists& lists) const;
  };
  /// The pairs of tokens of two lists that the mask shows, of one head and one batch entry.
  struct VisiblePairs {
    double full = 0;         ///< In pairs of blocks that it shows wholly.
    double cut = 0;          ///< In others.
    double edge_rows = 0;    ///< As Work has them.
    double edge_tokens = 0;  ///< As Work has them.
    double q_tokens = 0;     ///< In blocks that see something.
    double kv_tokens = 0;    ///< In blocks that are seen.
  };

  VisiblePairs count(const plan::BlockIds& q, const plan::BlockIds& kv) const;
  VisiblePairs known_pairs(const plan::BlockIds& q, const plan::BlockIds& kv) const;
  void add_pairs(const plan::View& q, const plan::View& kv, OpWork& work) const;
  double memory_bytes(const plan::RankProgram& program, const plan::Op& op) const;
  double view_bytes(const plan::RankProgram& program, const plan::View& view) const;

  const plan::Problem& problem_;
  const plan::Blocks& blocks_;
  plan::TokenCounts counts_;
  bool sees_all_;  ///< The mask hides no pair.
  bool with_edges_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<Lists, VisiblePairs, HashOfLists> known_;  ///< Under the mutex.
};

/// From work to time. Implementations must not depend on anything but the work.
class CostModel {
 public:
  virtual ~CostModel() = default;
  /// Whether seconds() needs OpWork::edge_rows.
  virtual bool needs_edges() const = 0;
  /// Called by several threads at once. The result is not negative.
  virtual double seconds(const OpWork& work) const = 0;
};

/// Costs by the numbers of a device: the kernel curves for ops that attend, memory for the rest.
///
///   attend   full_flops / F_full(n) + cut_flops / F_causal(n) + sums read / carry_bytes_per_s,
///            n = sqrt(q_tokens * kv_tokens); DeviceSpec::mask_edges: all at F_full(n), and for
///            each edge row what a row of a causal block of edge_tokens takes more than of a full
///            one
///   others   bytes / memory_bytes_per_s, or by the curve of the kind of op
///
/// and launch_s for each op. The curve has the pass and dtype of the problem and the nearest head
/// dim; bf16 and fp16 take each other's place.
class DeviceCosts final : public CostModel {
 public:
  /// @throws InvalidArgument if the device has no curve for the dtype (names those that it has).
  DeviceCosts(const DeviceSpec& device, const plan::Problem& problem);
  DeviceCosts(const DeviceCosts&) = delete;
  DeviceCosts& operator=(const DeviceCosts&) = delete;
  bool needs_edges() const override { return device_.mask_edges; }
  double seconds(const OpWork& work) const override;

 private:
  /// The curves of one pass; a missing one is replaced by the other.
  struct Curves {
    const KernelCurve* full = nullptr;
    const KernelCurve* causal = nullptr;
  };
  Curves curves(plan::Pass pass, const plan::Problem& problem) const;
  double memory_rate(const OpWork& work) const;

  DeviceSpec device_;
  double sum_bytes_;  ///< Bytes of an element of an accumulator.
  Curves forward_;
  Curves backward_;
};

}  // namespace armillary::sim
