#include "armillary/lab/calibrate/products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/lab/calibrate/timing.h"

namespace armillary::calibrate {
namespace {

/// Rows and columns: large enough for full speed, and some ten milliseconds for one core.
constexpr std::int64_t kSize = 1024;

/// A factor and its square, both empty on ranks of other processes.
struct SquareProduct {
  at::Tensor factor;
  at::Tensor square;
};

}  // namespace

double measure_products(const std::vector<plan::Dtype>& dtypes, bench::Ranks& ranks, int world) {
  double best = 0;
  for (const plan::Dtype dtype : dtypes) {
    const bool is_emulated = dtype == plan::Dtype::Bf16 && !kernel::cpu::multiplies_bf16();
    // Emulated bf16 is measured as fp32, and only if no other dtype is given.
    if (is_emulated && dtypes.size() > 1) continue;
    const at::ScalarType type = bench::kernel_dtype(is_emulated ? plan::Dtype::F32 : dtype);
    std::vector<SquareProduct> products;
    for (int rank = 0; rank < world; ++rank) {
      const std::int64_t size = ranks.runs(rank) ? kSize : 0;
      products.push_back({at::ones({size, size}, type), at::empty({size, size}, type)});
    }
    const double seconds = median_seconds(ranks, [&](comm::Communicator& comm) {
      SquareProduct& product = products[comm.rank()];
      at::mm_out(product.square, product.factor, product.factor);
    });
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
  }
  return best;
}

}  // namespace armillary::calibrate
