#include "cli/torch/png.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <png.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "armillary/core/error.h"

namespace armillary::cli {
namespace {

/// The pictures in one, row by row.
at::Tensor grid_of(const at::Tensor& bytes_NHWC) {
  const std::int64_t count = bytes_NHWC.size(0);
  const auto columns = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const std::int64_t rows = (count + columns - 1) / columns;
  const std::int64_t height = bytes_NHWC.size(1);
  const std::int64_t width = bytes_NHWC.size(2);
  at::Tensor grid = at::zeros({rows * height, columns * width, bytes_NHWC.size(3)}, at::kByte);
  for (std::int64_t i = 0; i < count; ++i) {
    grid.narrow(0, i / columns * height, height)
        .narrow(1, i % columns * width, width)
        .copy_(bytes_NHWC[i]);
  }
  return grid;
}

}  // namespace

void check_png(std::int64_t channels) {
  if (channels == 1 || channels == 3) return;
  fail<InvalidArgument>(
      "sample: pictures of {} channels; 1 or 3 is required in a .png; nearest: a .safetensors file",
      channels);
}

std::string png_of(const at::Tensor& pictures_NHWC) {
  const std::int64_t channels = pictures_NHWC.size(3);
  check_png(channels);
  if (!pictures_NHWC.isfinite().all().item<bool>()) {
    fail<InvalidArgument>(
        "sample: pictures have values that are not finite; finite ones are required in a .png; "
        "nearest: a .safetensors file");
  }
  const at::Tensor grid =
      grid_of(((pictures_NHWC + 1) * 127.5).round().clamp(0, 255).to(at::kByte)).contiguous();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (grid.size(0) > kMost || grid.size(1) > kMost) {
    fail<InvalidArgument>("sample: a grid of {} x {} pixels; sides of at most {} are required",
                          grid.size(0), grid.size(1), kMost);
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(grid.size(0));
  image.width = static_cast<png_uint_32>(grid.size(1));
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::string bytes;
  const auto write_to = [&](char* to) {
    png_alloc_size_t size = bytes.size();
    const int is_written =
        png_image_write_to_memory(&image, to, &size, /*convert_to_8_bit=*/0, grid.const_data_ptr(),
                                  /*row_stride=*/0, nullptr);
    if (is_written == 0) fail<Error>("sample: libpng: {}", image.message);
    bytes.resize(size);
  };
  write_to(nullptr);  // the number of bytes alone
  write_to(bytes.data());
  return bytes;
}

}  // namespace armillary::cli
