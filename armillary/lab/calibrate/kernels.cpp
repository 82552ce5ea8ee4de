#include "armillary/lab/calibrate/kernels.h"

#include <algorithm>
#include <memory>

#include "armillary/lab/calibrate/block_call.h"
#include "armillary/lab/calibrate/timing.h"

namespace armillary::calibrate {
namespace {

/// The same block on each rank of this process.
class BlockCalls {
 public:
  BlockCalls(const BlockShape& shape, const bench::Ranks& ranks, int world) : of_rank_(world) {
    for (int rank = 0; rank < world; ++rank) {
      if (ranks.runs(rank)) of_rank_[rank] = std::make_unique<BlockCall>(shape);
    }
  }
  /// A call on each rank.
  bench::Ranks::Work call(plan::Pass pass, bool init) {
    return [this, pass, init](comm::Communicator& comm) { of_rank_[comm.rank()]->run(pass, init); };
  }

 private:
  std::vector<std::unique_ptr<BlockCall>> of_rank_;
};

BlockShape shape_of(const CurveCase& spec, std::int64_t tokens, bool causal) {
  return {.dtype = spec.dtype,
          .head_dim = spec.head_dim,
          .heads = spec.heads,
          .tokens = tokens,
          .causal = causal};
}

}  // namespace

std::vector<sim::KernelCurve> measure_kernels(const CurveCase& spec, bench::Ranks& ranks,
                                              int world) {
  std::vector<sim::KernelCurve> curves;
  for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
    for (const bool causal : {false, true}) {
      curves.push_back(
          {.pass = pass, .causal = causal, .head_dim = spec.head_dim, .dtype = spec.dtype});
    }
  }
  // All sizes are there together, so that their samples take turns.
  std::vector<std::unique_ptr<BlockCalls>> blocks;  // By size, full then causal.
  std::vector<bench::Ranks::Work> calls;
  for (std::int64_t tokens = spec.least_tokens; tokens <= spec.most_tokens; tokens *= 2) {
    for (const bool causal : {false, true}) {
      blocks.push_back(std::make_unique<BlockCalls>(shape_of(spec, tokens, causal), ranks, world));
    }
    for (sim::KernelCurve& curve : curves) {
      const int mask = curve.causal ? 1 : 0;
      calls.push_back(blocks[blocks.size() - 2 + mask]->call(curve.pass, true));
      curve.points.push_back({.size = static_cast<double>(tokens),
                              .rate = flops_of(shape_of(spec, tokens, curve.causal), curve.pass)});
    }
  }
  const std::vector<double> seconds = median_seconds(ranks, calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    curves[i % curves.size()].points[i / curves.size()].rate /= seconds[i];
  }
  return curves;
}

double measure_carry(const CurveCase& spec, bench::Ranks& ranks, int world) {
  // Small enough for the accumulators to show beside the products, large enough to be timed.
  const BlockShape shape = shape_of(spec, std::min<std::int64_t>(256, spec.most_tokens), false);
  BlockCalls blocks(shape, ranks, world);
  const double extra = median_difference(ranks, blocks.call(plan::Pass::Forward, false),
                                         blocks.call(plan::Pass::Forward, true));
  const double bytes = accumulator_bytes(shape, plan::Pass::Forward);
  return extra > 0 ? bytes / extra : 0;
}

}  // namespace armillary::calibrate
