// layer_rate.h: how fast one attention layer is, spread over ranks by any strategy, beside one rank
// and beside its kernels alone, in one run.
//
//   sides: "cores"                  of a world above 1: two peaks over one (cores.h)
//          "peak"                   GFLOP/s of as many threads as ranks (peak.h)
//          "one_rank PASS"          the whole sequence on one rank, the other cores idle
//          "busy_rank PASS"         the same while every other core does it too; the mean
//          "STRATEGY PASS"          over all ranks
//          "STRATEGY kernels PASS"  its kernel calls alone, on all ranks at once
//
// PASS is "forward" or "forward+backward"; all but the first two are seconds of one layer. Ranks
// are threads with one computing thread each, and stay from round to round.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "armillary/bench/rounds.h"
#include "armillary/plan/problem.h"

namespace armillary::bench {

struct LayerCase {
  plan::Dtype dtype = plan::Dtype::F32;
  std::int64_t head_dim = 128;
  std::int64_t tokens = 1024;  ///< A rank.
  std::int64_t heads = 8;
  std::int64_t kv_heads = 8;
  std::string mask = "causal";  ///< Over tokens * world.
  std::string layout = "zigzag";
  int world = 2;
  std::vector<std::string> strategies = {"ring"};
  bool kernels = true;  ///< Time the kernel calls alone too.
};

/// What is known of a strategy before anything is timed. Of two values the first is of forward, the
/// second of forward and backward.
struct LayerFacts {
  std::string strategy;
  /// As KernelFacts::max_error: of output and all gradients, from all ranks.
  double max_error = 0;
  std::int64_t ops[2] = {};  ///< In the programs of the rank that has most.
  /// Buffers that ATen allocates on a rank in one layer once it is warm; the rank that has most.
  std::int64_t allocations[2] = {};
};

class LayerRate {
 public:
  /// Makes everything, runs it and checks the results. @throws InvalidArgument for a case that
  /// cannot be; Error if a result is wrong.
  explicit LayerRate(const LayerCase& given);
  ~LayerRate();

  const std::string& isa() const { return isa_; }
  /// Of visible pairs, over all ranks: 4 D a pair and query head forward, 14 D both.
  double flops(bool backward) const;
  const std::vector<LayerFacts>& facts() const { return facts_; }  ///< As the case names them.
  std::vector<Side> sides();

 private:
  struct Contest;
  std::unique_ptr<Contest> contest_;
  std::string isa_;
  std::vector<LayerFacts> facts_;
};

inline constexpr const char* kPassNames[2] = {"forward", "forward+backward"};

}  // namespace armillary::bench
