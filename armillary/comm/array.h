// array.h: contiguous elements of one dtype: the arguments of collectives.
//
// Messages move bytes and know no dtype (strided.h); a collective adds and compares elements, so it
// has to know theirs. `array` makes an Array of any span of values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "armillary/comm/strided.h"

namespace armillary::comm {

/// Dtypes of elements. Bytes can be moved, but neither added nor compared. Bf16 and Fp16 are the
/// formats of core/half_floats.h.
enum class ElementType : std::uint8_t { Byte, Int64, Bf16, Fp16, Fp32, Fp64 };

/// Size of an element in bytes.
constexpr std::int64_t size_of(ElementType dtype) {
  constexpr std::array<std::int64_t, 6> kSizes{1, 8, 2, 2, 4, 8};
  return kSizes[static_cast<std::size_t>(dtype)];
}
/// Name of a dtype for error texts, in lower case.
constexpr std::string_view to_string(ElementType dtype) {
  constexpr std::array<std::string_view, 6> kNames{"byte", "int64", "bf16", "fp16", "fp32", "fp64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// `count` contiguous elements, at any address: elements need not be aligned. The pointer is not
/// const, because one type serves inputs and outputs: a collective writes only to the arrays that
/// its comment names as outputs.
struct Array {
  std::byte* data = nullptr;  ///< May be null if there are no elements.
  std::int64_t count = 0;
  ElementType dtype = ElementType::Byte;
  int device = kHost;  ///< The device that has the memory, as in Strided.

  std::int64_t bytes() const { return count * size_of(dtype); }
};

/// The dtype of a C++ type. There is none for 16-bit floats: C++20 has no type for them.
template <class T>
constexpr ElementType dtype_of() {
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, std::byte>) return ElementType::Byte;
  if constexpr (std::is_same_v<Plain, std::int64_t>) return ElementType::Int64;
  if constexpr (std::is_same_v<Plain, float>) return ElementType::Fp32;
  if constexpr (std::is_same_v<Plain, double>) return ElementType::Fp64;
  static_assert(std::is_same_v<Plain, std::byte> || std::is_same_v<Plain, std::int64_t> ||
                    std::is_same_v<Plain, float> || std::is_same_v<Plain, double>,
                "collectives take std::byte, std::int64_t, float and double");
}

/// The values as an array, which does not own them: they must live as long as it is used. A dtype
/// that has no C++ type is named by `dtype`; the values may then be of any type, and the count is
/// that of elements of the dtype. The array is in host memory.
template <class T>
Array array(std::span<T> values, ElementType dtype = dtype_of<T>()) {
  return {const_cast<std::byte*>(std::as_bytes(values).data()),
          static_cast<std::int64_t>(values.size_bytes()) / size_of(dtype), dtype};
}

}  // namespace armillary::comm
