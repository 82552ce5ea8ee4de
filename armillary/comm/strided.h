// strided.h: the memory of a message, which need not be contiguous.
//
//   data ------> [row_bytes]......[row_bytes]......[row_bytes]      rows = 3
//                |<-- stride -->|                                   the gaps are not touched
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace armillary::comm {

inline constexpr int kHost = -1;  ///< Stands for host memory where a device's number is expected.

/// `rows` runs of `row_bytes` bytes each, their begins `stride_bytes` apart. It describes the part
/// of a tensor that a view shows: some heads of some tokens, a row per token. Requires stride_bytes
/// >= row_bytes if rows > 1. The pointer is not const, because one type serves both sides of a
/// message: a send only reads its memory.
struct Strided {
  std::byte* data = nullptr;  ///< May be null if there are no bytes.
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t stride_bytes = 0;
  int device = kHost;  ///< Number of the device that has the memory. An engine may take none.
};

/// The memory of all `values`, as one row.
template <class T>
Strided whole(std::span<T> values) {
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  return {const_cast<std::byte*>(std::as_bytes(values).data()), 1, bytes, bytes};
}

/// Bytes of a message: the sum of rows * row_bytes. @throws InvalidArgument if it overflows.
std::int64_t total_bytes(std::span<const Strided> parts);

/// The begin of the bytes of `parts` if they lie in one row, else null; null also if there are
/// none.
std::byte* one_row(std::span<const Strided> parts);

/// Copies the bytes of `from`, one part after the other, row by row, into those of `to`, in the
/// same order. Parts and rows of the two may differ: 3 rows of 4 bytes fill 2 rows of 6. Requires
/// equal total bytes, and memory that does not overlap. Cost: one memcpy per run that is contiguous
/// on both sides.
void copy_strided(std::span<const Strided> from, std::span<const Strided> to);

}  // namespace armillary::comm
