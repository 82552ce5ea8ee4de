// half_floats.h: floats of 16 bits, for sums in fp32. Rounding is to nearest, ties to even; a NaN
// stays one.
#pragma once

#include <bit>
#include <cstdint>

namespace armillary::comm {

/// 8 bits of exponent, 7 of mantissa: the upper half of an fp32.
struct Bf16 {
  std::uint16_t bits = 0;

  Bf16() = default;
  explicit Bf16(float x) {
    const auto all = std::bit_cast<std::uint32_t>(x);
    const bool nan = (all & 0x7FFFFFFF) > 0x7F800000;
    const std::uint32_t rounded = all + 0x7FFF + (all >> 16 & 1);
    bits = static_cast<std::uint16_t>((nan ? all | 0x400000 : rounded) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// 5 bits of exponent, 10 of mantissa.
struct Fp16 {
  std::uint16_t bits = 0;

  Fp16() = default;
  explicit Fp16(float x) {
    const auto all = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = all & 0x7FFFFFFF;
    std::uint32_t half = 0;
    if (magnitude > 0x7F800000) {
      half = 0x7E00;  // NaN
    } else if (magnitude >= 0x477FF000) {
      half = 0x7C00;  // 65520 and above is nearer to infinity than to the largest number
    } else if (magnitude < 0x38800000) {
      // Below 2^-14 numbers are multiples of 2^-24, and so are fp32 from 0.5 to 1.
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
    } else {
      half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    bits = static_cast<std::uint16_t>(half | (all >> 16 & 0x8000));
  }
  explicit operator float() const {
    const std::uint32_t shifted = std::uint32_t{bits & 0x7FFFU} << 13;
    const bool finite = shifted < 0x0F800000;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted) * 0x1p112F);
    const std::uint32_t magnitude = finite ? scaled : shifted | 0x7F800000;
    return std::bit_cast<float>(magnitude | std::uint32_t{bits & 0x8000U} << 16);
  }
};

}  // namespace armillary::comm
