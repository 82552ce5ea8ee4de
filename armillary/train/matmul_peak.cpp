#include "armillary/train/matmul_peak.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <optional>
#include <span>

#include "armillary/comm/collectives.h"

namespace armillary::train {

double measure_matmul_peak(comm::Communicator& comm, c10::ScalarType dtype) {
  constexpr std::int64_t kSize = 512;  // large enough for full speed; three matrices fit in a cache
  constexpr std::chrono::duration<double> kWindow(0.1);  // a period of a quota of CPU time
  const at::Tensor a = at::ones({kSize, kSize}, dtype);
  at::Tensor product = at::mm(a, a);  // warm-up

  // All ranks multiply at the same time, as they do in training.
  comm::barrier(comm);
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> elapsed{};
  double flops = 0;
  // The rate over the whole window, not of its best product: ranks may share a core.
  while (elapsed < kWindow) {
    at::mm_out(product, a, a);
    flops += 2.0 * kSize * kSize * kSize;
    elapsed = std::chrono::steady_clock::now() - begin;
  }
  double rate = flops / elapsed.count();
  comm::all_reduce_sum(comm, std::span(&rate, 1));
  return rate / comm.world();
}

std::optional<double> percent_of_peak(double flops_per_s, double peak_flops_per_s) {
  if (!(peak_flops_per_s > 0 && flops_per_s <= peak_flops_per_s)) return std::nullopt;
  return 100 * flops_per_s / peak_flops_per_s;
}

}  // namespace armillary::train
