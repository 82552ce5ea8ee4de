#include "armillary/train/one_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace armillary::train {

at::Tensor visible_pairs(const plan::Mask& mask) {
  at::Tensor visible_SS = at::zeros({mask.q_len(), mask.kv_len()}, at::kBool);
  const at::Tensor distance_SS = at::arange(mask.kv_len()).unsqueeze(0) -  // k - q
                                 at::arange(mask.q_len()).unsqueeze(1);
  for (const plan::Band& band : mask.bands()) {
    // The band's rectangle, between its two diagonals.
    const auto rectangle = [&](const at::Tensor& x_SS) {
      return x_SS.slice(0, band.q.begin, band.q.end).slice(1, band.k.begin, band.k.end);
    };
    const at::Tensor distance = rectangle(distance_SS);
    rectangle(visible_SS).logical_or_(distance.ge(band.lo).logical_and(distance.le(band.hi)));
  }
  return visible_SS;
}

model::Attend attend_on_one_device(const at::Tensor& visible_SS) {
  return
      [visible_SS](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD, const at::Tensor& v_BLGD) {
        const std::int64_t queries_a_key = q_BLHD.size(2) / k_BLGD.size(2);
        const auto by_head = [&](const at::Tensor& x_BLGD) {
          return x_BLGD.repeat_interleave(queries_a_key, 2).transpose(1, 2);
        };
        const double scale = 1 / std::sqrt(static_cast<double>(q_BLHD.size(3)));
        const at::Tensor scores_BHSS =
            at::matmul(q_BLHD.transpose(1, 2), by_head(k_BLGD).transpose(2, 3)) * scale;
        // A row without keys would be NaN, also in its gradient, so its scores are set to 0 first.
        const at::Tensor sees_a_key = visible_SS.any(1, /*keepdim=*/true);
        const at::Tensor probabilities_BHSS =
            scores_BHSS.to(scores_BHSS.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
                .masked_fill(visible_SS.logical_not(), -std::numeric_limits<float>::infinity())
                .masked_fill(sees_a_key.logical_not(), 0)
                .softmax(-1) *
            sees_a_key;
        return at::matmul(probabilities_BHSS.to(v_BLGD.scalar_type()), by_head(v_BLGD))
            .transpose(1, 2)
            .contiguous();
      };
}

}  // namespace armillary::train
