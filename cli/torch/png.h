// png.h: pictures as a PNG file, side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace armillary::cli {

/// @throws InvalidArgument unless a PNG can have so many channels: 1 (gray) or 3 (red, green,
/// blue).
void check_png(std::int64_t channels);

/// The bytes of a PNG of 8 bits a channel: pictures [n, height, width, channels], n >= 1, in rows
/// of equal length, as many rows as columns or one less; -1 is black, 1 white, and values beyond
/// are those. Places behind the last picture are black.
/// @throws InvalidArgument as check_png, for values that are not finite, or a side of 2^31 pixels.
std::string png_of(const at::Tensor& pictures_NHWC);

}  // namespace armillary::cli
