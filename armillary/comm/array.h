// array.h: elements of one dtype, as collectives take them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "armillary/comm/strided.h"

namespace armillary::comm {

enum class Dtype : std::uint8_t { Byte, Int64, Bf16, Fp16, Fp32, Fp64 };

/// Bytes of an element.
constexpr std::int64_t size_of(Dtype dtype) {
  constexpr std::array<std::int64_t, 6> kSizes{1, 8, 2, 2, 4, 8};
  return kSizes[static_cast<std::size_t>(dtype)];
}
constexpr std::string_view to_string(Dtype dtype) {
  constexpr std::array<std::string_view, 6> kNames{"byte", "int64", "bf16", "fp16", "fp32", "fp64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// `count` elements, contiguous. A collective that only reads an array does not write there.
struct Array {
  std::byte* data = nullptr;  ///< May be null if there are no elements.
  std::int64_t count = 0;
  Dtype dtype = Dtype::Byte;
  int device = kHost;  ///< As of Strided.

  std::int64_t bytes() const { return count * size_of(dtype); }
};

template <class T>
constexpr Dtype dtype_of() {
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, std::byte>) return Dtype::Byte;
  if constexpr (std::is_same_v<Plain, std::int64_t>) return Dtype::Int64;
  if constexpr (std::is_same_v<Plain, float>) return Dtype::Fp32;
  if constexpr (std::is_same_v<Plain, double>) return Dtype::Fp64;
}

/// The values as an array; of 16-bit floats, which C++ has no type for, `dtype` says which.
template <class T>
Array array(std::span<T> values, Dtype dtype = dtype_of<T>()) {
  return {const_cast<std::byte*>(std::as_bytes(values).data()),
          static_cast<std::int64_t>(values.size_bytes()) / size_of(dtype), dtype};
}

}  // namespace armillary::comm
