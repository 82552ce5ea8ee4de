// half_floats.h: floats of 16 bits, converted to and from fp32.
//
// The conversions need no 16-bit type of the compiler, so every compiler gives the same bits.
// Conversion to fp32 is exact. Conversion from fp32 rounds to nearest, ties to even; a number that
// is too large becomes infinity, and a NaN stays a NaN. They are inlined always, and use no
// function of the standard library, because sources that are compiled for one instruction set
// include this (kernel/cpu/simd-inl.h).
//
//          sign  exponent  mantissa   largest number   smallest above 0
//   bf16    1       8         7         2^128 - 2^120      2^-133
//   fp16    1       5        10         65504              2^-24
#pragma once

#include <cstdint>

namespace armillary {

/// bfloat16: the upper half of an fp32.
struct Bf16 {
  std::uint16_t bits;

  Bf16() = default;
  [[gnu::always_inline]] explicit Bf16(float x) {
    const auto all = __builtin_bit_cast(std::uint32_t, x);
    // Adding half of the last kept place, less one if that place is even, rounds ties to even. A
    // carry out of the mantissa raises the exponent, at the end to infinity, as it should.
    const bool nan = (all & 0x7FFFFFFF) > 0x7F800000;
    const std::uint32_t rounded = all + 0x7FFF + (all >> 16 & 1);
    // A NaN keeps its upper bits, with one bit set that keeps it from turning into infinity.
    bits = static_cast<std::uint16_t>((nan ? all | 0x400000 : rounded) >> 16);
  }
  [[gnu::always_inline]] explicit operator float() const {
    return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
  }
};

/// IEEE binary16, with subnormal numbers.
struct Fp16 {
  std::uint16_t bits;

  Fp16() = default;
  [[gnu::always_inline]] explicit Fp16(float x) {
    const auto all = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t magnitude = all & 0x7FFFFFFF;
    std::uint32_t half = 0;
    if (magnitude > 0x7F800000) {
      half = 0x7E00;  // NaN
    } else if (magnitude >= 0x477FF000) {
      half = 0x7C00;  // 65520 and above round to infinity.
    } else if (magnitude < 0x38800000) {
      // Numbers below 2^-14 are multiples of 2^-24, as fp32 numbers from 0.5 to 1 are: the addition
      // rounds, and the low bits of the sum are the multiple.
      half = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5F) -
             0x3F000000;
    } else {
      // The exponent bias falls from 127 to 15, 112 << 23 in all; 13 bits are rounded away.
      half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    bits = static_cast<std::uint16_t>(half | (all >> 16 & 0x8000));
  }
  [[gnu::always_inline]] explicit operator float() const {
    // The bits in the places of an fp32 are the number times 2^-112; a product with 2^112 corrects
    // the exponent, and makes subnormal numbers normal. Infinity and NaN get the largest exponent.
    const std::uint32_t shifted = std::uint32_t{bits & 0x7FFFU} << 13;
    const bool finite = shifted < 0x0F800000;
    const auto scaled =
        __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, shifted) * 0x1p112F);
    const std::uint32_t magnitude = finite ? scaled : shifted | 0x7F800000;
    return __builtin_bit_cast(float, magnitude | std::uint32_t{bits & 0x8000U} << 16);
  }
};

}  // namespace armillary
