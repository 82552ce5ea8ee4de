// gguf_blocks.h: types of tensors in GGUF files, and their blocks as fp32.
//
// A quantised row is a sequence of blocks, each with a scale of its own for its values. Formulas
// are those of ggml (dequantize_row_* of ggml-quants.c), in the same order, so values have the same
// bits.
//
//   type   values  bytes   value i
//   F32         1      4
//   F16         1      2
//   BF16        1      2
//   Q8_0       32     34   d q8
//   Q4_0       32     18   d (q4 - 8)
//   Q4_1       32     20   d q4 + m
//   Q4_K      256    144   d s q4 - dmin m, with 6-bit s and m for each 32 values
//   Q6_K      256    210   d s (q6 - 32), with an 8-bit s for each 16 values
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace armillary::io {

/// Types that are read, by their numbers in files.
enum class GgufType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,   // NOLINT(readability-identifier-naming): names of the format, as below
  Q4_1 = 3,   // NOLINT(readability-identifier-naming)
  Q8_0 = 8,   // NOLINT(readability-identifier-naming)
  Q4_K = 12,  // NOLINT(readability-identifier-naming)
  Q6_K = 14,  // NOLINT(readability-identifier-naming)
  BF16 = 30,
};

/// Values and bytes of one block.
struct GgufBlock {
  std::int64_t values;
  std::int64_t bytes;
};
GgufBlock block_of(GgufType type);

inline constexpr std::int64_t kMostBlockValues = 256;

/// Nothing for a number that is not read here.
std::optional<GgufType> parse_gguf_type(std::uint32_t number);
/// `Q4_K`; of a number that is not read here `Q5_K` too, or `type 99` if ggml has none.
std::string gguf_type_name(std::uint32_t number);
/// The types that are read, in prose.
std::string gguf_type_names();

/// Writes the values of one block. `block` need not be aligned.
void dequantize_block(GgufType type, const std::byte* block, float* values);

}  // namespace armillary::io
