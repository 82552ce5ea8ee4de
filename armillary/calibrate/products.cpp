#include "armillary/calibrate/products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "armillary/bench/attention_case.h"
#include "armillary/calibrate/timing.h"
#include "armillary/kernel/cpu/cpu_flags.h"

namespace armillary::calibrate {
namespace {

/// Rows and columns: large enough for full speed, and some ten milliseconds for one core.
constexpr std::int64_t kSize = 1024;

/// A factor and its square, both empty on ranks of other processes.
struct Product {
  at::Tensor factor;
  at::Tensor square;
};

}  // namespace

double measure_products(const std::vector<plan::Dtype>& dtypes, bench::Ranks& ranks, int world) {
  double best = 0;
  for (const plan::Dtype dtype : dtypes) {
    const bool is_emulated = dtype == plan::Dtype::Bf16 && !kernel::cpu::multiplies_bf16();
    if (is_emulated && dtypes.size() > 1) continue;
    const at::ScalarType type = bench::kernel_dtype(is_emulated ? plan::Dtype::F32 : dtype);
    std::vector<Product> products;
    for (int rank = 0; rank < world; ++rank) {
      const std::int64_t size = ranks.runs(rank) ? kSize : 0;
      products.push_back({at::ones({size, size}, type), at::empty({size, size}, type)});
    }
    const double seconds = median_seconds(ranks, [&](comm::Communicator& comm) {
      Product& product = products[comm.rank()];
      at::mm_out(product.square, product.factor, product.factor);
    });
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
  }
  return best;
}

}  // namespace armillary::calibrate
