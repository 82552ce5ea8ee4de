#include "armillary/model/picture.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>

#include <cmath>

namespace armillary::model {

at::Tensor patches_of(const at::Tensor& picture_HWC, const PictureShape& shape) {
  return picture_HWC
      .reshape({shape.rows(), shape.patch, shape.columns(), shape.patch, shape.channels})
      .transpose(1, 2)
      .reshape({shape.tokens(), shape.patch_values()});
}

at::Tensor picture_of(const at::Tensor& patches_SC, const PictureShape& shape) {
  return patches_SC
      .reshape({shape.rows(), shape.columns(), shape.patch, shape.patch, shape.channels})
      .transpose(1, 2)
      .reshape({shape.height, shape.width, shape.channels});
}

Waves waves_at(const at::Tensor& places_N, std::int64_t count) {
  const at::Tensor frequencies_C =
      (at::arange(count, at::kDouble) * (-std::log(1e4) / static_cast<double>(count))).exp();
  const at::Tensor angles_NC = at::outer(places_N.to(at::kDouble), frequencies_C);
  return {angles_NC.sin(), angles_NC.cos()};
}

at::Tensor sin_cos_positions(const at::Tensor& positions_L, const PictureShape& shape,
                             std::int64_t dim) {
  const auto waves_of = [dim](std::int64_t places) {
    const Waves waves = waves_at(at::arange(places, at::kDouble), dim / 4);
    return at::cat({waves.sin_NC, waves.cos_NC}, 1);
  };
  const std::int64_t columns = shape.columns();
  return at::cat({waves_of(columns).index_select(0, positions_L.remainder(columns)),
                  waves_of(shape.rows()).index_select(0, positions_L.div(columns, "floor"))},
                 1);
}

}  // namespace armillary::model
