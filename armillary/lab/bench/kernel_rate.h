// kernel_rate.h: measures how fast the CPU kernel is, beside the peak of the cores and PyTorch's
// flash kernel, in one run.
//
//   sides, in GFLOP/s:
//     "cores"    only with several threads: two peaks over one (cores.h), no rate
//     "peak"     multiply-adds of as many threads (peak.h)
//     "kernel"   our kernel
//     "sdpa"     PyTorch's, if the case asks for it
//
// Results are checked before anything is timed. Every side does the whole job: it reads inputs and
// writes the result, or all gradients, in the input dtype. Clearing accumulators and computing
// Delta are parts of our time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/plan/plan.h"

namespace armillary::bench {

struct KernelCase {
  plan::Dtype dtype = plan::Dtype::F32;
  std::int64_t head_dim = 128;
  std::int64_t tokens = 4096;  ///< Rows of Q, K and V.
  std::int64_t heads = 8;
  std::int64_t kv_heads = 8;
  std::string mask = "causal";  ///< As on the command line, over tokens * world.
  /// The rows are the tokens of rank 0 of `world` in this layout, such as two halves of a zigzag.
  std::string layout = "contiguous";
  int world = 1;
  plan::Pass pass = plan::Pass::Forward;  ///< Backward is timed without forward.
  int threads = 1;
  /// Adds the side "sdpa". Ignored for masks that PyTorch's kernel does not know (it knows full and
  /// causal), and if world > 1.
  bool sdpa = false;
};

/// Facts about a case that are known before anything is timed.
struct KernelFacts {
  std::string isa;  ///< Instruction set of our kernel.
  /// Flops of one run: for each visible pair and query head 4 D forward, 10 D backward.
  double flops = 0;
  /// Error against fp64 (error_of in attention_case.h), over the output and, in backward, the
  /// gradients, of the first KV head and its query heads.
  double max_error = 0;
  std::optional<double> sdpa_max_error = {};  ///< The same of PyTorch's kernel.
};

/// A case with its inputs. One thread calls; the constructor sets its number of intra-op threads.
class KernelRate {
 public:
  /// Runs everything once and checks the results. @throws InvalidArgument for a case that the
  /// kernel does not take; Error if our result is wrong.
  explicit KernelRate(const KernelCase& spec);
  ~KernelRate();

  const KernelFacts& facts() const { return facts_; }
  std::vector<Side> sides();  ///< They must not outlive this object.

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  KernelFacts facts_;
};

}  // namespace armillary::bench
