// kernel_rate.h: how fast the CPU kernel is, beside the peak and beside PyTorch, in one run.
//
// Checks before it times. All sides do the whole job: inputs in, result or gradients out in the
// input dtype; ours clears its accumulators and makes delta within the time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/bench/rounds.h"
#include "armillary/plan/plan.h"

namespace armillary::bench {

struct KernelCase {
  plan::Dtype dtype = plan::Dtype::F32;
  std::int64_t head_dim = 128;
  std::int64_t tokens = 4096;  ///< Rows of Q, K and V.
  std::int64_t heads = 8;
  std::int64_t kv_heads = 8;
  std::string mask = "causal";  ///< As on the command line, over tokens * world.
  /// Rows stand for the tokens of rank 0 of `world` in this layout: zigzag halves, stripes.
  std::string layout = "contiguous";
  int world = 1;
  plan::Pass pass = plan::Pass::Forward;
  int threads = 1;
  bool sdpa = false;  ///< PyTorch's flash kernel too, where it knows the mask: full and causal.
};

/// What is known before anything is timed.
struct KernelFacts {
  std::string isa;
  /// Of visible pairs: forward 4 D, backward 10 D a pair and query head.
  double flops = 0;
  /// Largest difference to fp64 over the largest value, of the output and, in backward, the worst
  /// gradient; of the first KV head and its query heads.
  double max_error = 0;
  std::optional<double> sdpa_max_error = {};
};

/// Sides, in GFLOP/s: "kernel", "peak" of as many threads (peak.h), and perhaps "sdpa"; of several
/// threads also "cores" (cores.h). One thread calls; its intra-op threads are set.
class KernelRate {
 public:
  /// Makes everything, runs it once and checks the results. @throws InvalidArgument for a case that
  /// no kernel takes; Error if our result is wrong.
  explicit KernelRate(const KernelCase& given);
  ~KernelRate();

  const KernelFacts& facts() const { return facts_; }
  std::vector<Side> sides();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  KernelFacts facts_;
};

}  // namespace armillary::bench
