// products.h: measures matrix products, which take most of a training step around attention. For
// the sources of this folder.
#pragma once

#include <vector>

#include "armillary/lab/bench/ranks.h"
#include "armillary/plan/problem.h"

namespace armillary::calibrate {

/// Flop/s of a rank (2 a multiply-add) in products of large square matrices, on all ranks at once:
/// of the dtype that is multiplied fastest. bf16 is left out where the CPU has no instructions for
/// it, as a model then multiplies fp32. Takes about 0.1 s a dtype. Collective over the ranks.
double measure_products(const std::vector<plan::Dtype>& dtypes, bench::Ranks& ranks, int world);

}  // namespace armillary::calibrate
