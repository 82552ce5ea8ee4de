// strided.h: the memory of a message, which need not be contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace armillary::comm {

inline constexpr int kHost = -1;  ///< In place of a device's number.

/// `rows` runs of `row_bytes` bytes each, their begins `stride_bytes` apart: a part of a tensor
/// that a view shows (a head range of some tokens). Requires stride_bytes >= row_bytes if rows > 1.
/// A send only reads it.
struct Strided {
  std::byte* data = nullptr;  ///< May be null if there are no bytes.
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t stride_bytes = 0;
  int device = kHost;  ///< Number of the device that has it. Each engine says what it takes.
};

/// All of `values` as one row.
template <class T>
Strided whole(std::span<T> values) {
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  return {const_cast<std::byte*>(std::as_bytes(values).data()), 1, bytes, bytes};
}

/// Bytes of a message: the sum of rows * row_bytes. @throws InvalidArgument if it overflows.
std::int64_t total_bytes(std::span<const Strided> parts);

/// Copies the bytes of `from`, one part after the other, row by row, into those of `to`, in the
/// same order. Requires equal total bytes, and memory that does not overlap. Cost: one memcpy per
/// run that is contiguous on both sides.
void copy_strided(std::span<const Strided> from, std::span<const Strided> to);

}  // namespace armillary::comm
