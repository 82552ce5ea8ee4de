// The ops of the executor that do not attend, on tiles of all sizes. Bytes are those that a plan
// counts, so that rates are what the simulator divides by.
#include "armillary/lab/calibrate/memory.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/kernel/merge.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/lab/calibrate/timing.h"

namespace armillary::calibrate {
namespace {

constexpr std::int64_t kTileHeads = 4;
constexpr std::int64_t kTileDim = 64;
constexpr std::int64_t kLeastTokens = 64;
constexpr std::int64_t kMostTokens = 16384;  // 16 MiB of an fp32 tile.

constexpr plan::OpKind kOps[] = {plan::OpKind::Merge, plan::OpKind::Add, plan::OpKind::Copy,
                                 plan::OpKind::Finish, plan::OpKind::Delta};

/// Tiles that all these ops find on a rank.
struct Tiles {
  kernel::Partial acc;
  kernel::Partial part;
  at::Tensor out;
  at::Tensor dout;
  at::Tensor delta;

  Tiles(std::int64_t tokens, at::ScalarType dtype)
      : acc{at::zeros({1, tokens, kTileHeads, kTileDim}), at::zeros({1, tokens, kTileHeads})},
        part{at::zeros_like(acc.out_BLHE), at::zeros_like(acc.lse_BLH)},
        out(at::zeros(acc.out_BLHE.sizes(), dtype)),
        dout(at::zeros_like(out)),
        delta(at::zeros_like(acc.lse_BLH)) {}

  void run(plan::OpKind op) {
    switch (op) {
      case plan::OpKind::Merge:
        return kernel::merge(acc, part);
      case plan::OpKind::Add:
        return kernel::add(acc.out_BLHE, part.out_BLHE);
      case plan::OpKind::Finish:
        return kernel::finish(part, out, acc.lse_BLH);
      case plan::OpKind::Delta:
        return kernel::delta(dout, out, delta);
      default:
        out.narrow(2, 0, kTileHeads / 2).copy_(acc.out_BLHE.narrow(2, 0, kTileHeads / 2));
    }
  }

  /// Bytes as a plan counts them: of a row E accumulators, E elements of the dtype, and numbers.
  double bytes(plan::OpKind op) const {
    const auto wide = static_cast<double>(acc.out_BLHE.nbytes());
    const auto narrow = static_cast<double>(out.nbytes());
    const auto rows = static_cast<double>(delta.nbytes());
    switch (op) {
      case plan::OpKind::Merge:
        // Two operands are read and one of them is written: three passes.
        return 3 * (wide + rows);
      case plan::OpKind::Add:
        return 3 * wide;
      case plan::OpKind::Finish:
        return wide + narrow + 2 * rows;
      case plan::OpKind::Delta:
        return 2 * (narrow + rows);
      default:  // Copies are those of a range of heads.
        return (wide + narrow) / 2;
    }
  }
};

}  // namespace

std::vector<sim::MemoryCurve> measure_memory(plan::Dtype dtype, bench::Ranks& ranks, int world) {
  std::vector<sim::MemoryCurve> curves;
  for (const plan::OpKind op : kOps) curves.push_back({.op = op, .points = {}});
  // All sizes are there together, so that their samples take turns.
  std::vector<std::vector<Tiles>> tiles;  // By size, then by rank.
  std::vector<bench::Ranks::Work> works;
  for (std::int64_t tokens = kLeastTokens; tokens <= kMostTokens; tokens *= 4) {
    std::vector<Tiles> of_rank;
    of_rank.reserve(world);
    for (int rank = 0; rank < world; ++rank) {
      of_rank.emplace_back(ranks.runs(rank) ? tokens : 0, bench::kernel_dtype(dtype));
    }
    const Tiles counted(tokens, bench::kernel_dtype(dtype));
    for (sim::MemoryCurve& curve : curves) {
      const double bytes = counted.bytes(curve.op);
      // The rate is bytes for now; it is divided by the seconds when they are known.
      curve.points.push_back({.size = bytes, .rate = bytes});
      works.emplace_back([&tiles, size = tiles.size(), op = curve.op](comm::Communicator& comm) {
        tiles[size][comm.rank()].run(op);
      });
    }
    tiles.push_back(std::move(of_rank));
  }
  const std::vector<double> seconds = median_seconds(ranks, works);
  for (std::size_t i = 0; i < works.size(); ++i) {
    curves[i % curves.size()].points[i / curves.size()].rate /= seconds[i];
  }
  return curves;
}

}  // namespace armillary::calibrate
