// kernel_rate.h: how fast the CPU kernel is, beside the peak and beside PyTorch, in one run.
//
// Checks before it times. All sides do the whole job: inputs in, result or gradients out in the
// input dtype; ours clears its accumulators and makes delta within the time.
#pragma once

#include <optional>
#include <string>

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
};

/// Rates are medians over rounds, GFLOP/s of visible pairs: forward 4 D, backward 10 D flops a pair
/// and query head.
struct KernelRate {
  std::string isa;
  double gflops = 0;
  double peak_gflops = 0;  ///< Of as many threads; fp32.
  /// Largest difference to fp64 over the largest value, of the output or the worst gradient; of the
  /// first KV head and its query heads.
  double max_error = 0;
  std::optional<double> sdpa_gflops = {};  ///< PyTorch's flash kernel, full and causal masks only.
  int rounds = 0;
};

/// Measures for about `seconds` after the check; at least 3 rounds. Sets the intra-op threads of
/// the calling thread. @throws InvalidArgument for a case that no kernel takes; Error if the result
/// is wrong: nothing is timed then.
KernelRate measure_kernel(const KernelCase& given, double seconds, bool with_sdpa);

}  // namespace armillary::bench
