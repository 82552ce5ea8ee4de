// gguf_blocks.cpp: one function for each type. A block is read byte by byte: blocks of odd sizes
// follow one another without padding.
#include "armillary/io/gguf_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"
#include "armillary/core/names.h"

namespace armillary::io {
namespace {

struct TypeRow {
  std::uint32_t number;
  std::string_view name;
  GgufBlock block;  ///< Zeros: not read here.
};

constexpr std::array kTypes{TypeRow{0, "F32", {1, 4}},       TypeRow{1, "F16", {1, 2}},
                            TypeRow{2, "Q4_0", {32, 18}},    TypeRow{3, "Q4_1", {32, 20}},
                            TypeRow{6, "Q5_0", {0, 0}},      TypeRow{7, "Q5_1", {0, 0}},
                            TypeRow{8, "Q8_0", {32, 34}},    TypeRow{9, "Q8_1", {0, 0}},
                            TypeRow{10, "Q2_K", {0, 0}},     TypeRow{11, "Q3_K", {0, 0}},
                            TypeRow{12, "Q4_K", {256, 144}}, TypeRow{13, "Q5_K", {0, 0}},
                            TypeRow{14, "Q6_K", {256, 210}}, TypeRow{15, "Q8_K", {0, 0}},
                            TypeRow{16, "IQ2_XXS", {0, 0}},  TypeRow{17, "IQ2_XS", {0, 0}},
                            TypeRow{18, "IQ3_XXS", {0, 0}},  TypeRow{19, "IQ1_S", {0, 0}},
                            TypeRow{20, "IQ4_NL", {0, 0}},   TypeRow{21, "IQ3_S", {0, 0}},
                            TypeRow{22, "IQ2_S", {0, 0}},    TypeRow{23, "IQ4_XS", {0, 0}},
                            TypeRow{24, "I8", {0, 0}},       TypeRow{25, "I16", {0, 0}},
                            TypeRow{26, "I32", {0, 0}},      TypeRow{27, "I64", {0, 0}},
                            TypeRow{28, "F64", {0, 0}},      TypeRow{29, "IQ1_M", {0, 0}},
                            TypeRow{30, "BF16", {1, 2}},     TypeRow{34, "TQ1_0", {0, 0}},
                            TypeRow{35, "TQ2_0", {0, 0}},    TypeRow{39, "MXFP4", {0, 0}}};

const TypeRow* type_row(std::uint32_t number) {
  const auto* const row = std::ranges::find(kTypes, number, &TypeRow::number);
  return row == kTypes.end() ? nullptr : row;
}

/// The bytes of a block as numbers.
class BlockBytes {
 public:
  explicit BlockBytes(const std::byte* bytes) : bytes_(bytes) {}

  int at(int i) const { return std::to_integer<int>(bytes_[i]); }
  int low(int i) const { return at(i) & 15; }
  int high(int i) const { return at(i) >> 4; }
  int at_signed(int i) const { return static_cast<std::int8_t>(at(i)); }
  std::uint16_t word(int i) const { return static_cast<std::uint16_t>(at(i) | at(i + 1) << 8); }
  float half(int i) const {
    Fp16 value;
    value.bits = word(i);
    return static_cast<float>(value);
  }
  float bf16(int i) const {
    Bf16 value;
    value.bits = word(i);
    return static_cast<float>(value);
  }

 private:
  const std::byte* bytes_;
};

/// d, then 32 signed bytes.
void read_q8_0(BlockBytes block, float* values) {
  const float d = block.half(0);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(block.at_signed(2 + i)) * d;
}

/// d, then 16 bytes: value i in the low half of byte i, value i + 16 in its high half.
void read_q4_0(BlockBytes block, float* values) {
  const float d = block.half(0);
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<float>(block.low(2 + i) - 8) * d;
    values[i + 16] = static_cast<float>(block.high(2 + i) - 8) * d;
  }
}

/// d and m, then 16 bytes likewise.
void read_q4_1(BlockBytes block, float* values) {
  const float d = block.half(0);
  const float m = block.half(2);
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<float>(block.low(4 + i)) * d + m;
    values[i + 16] = static_cast<float>(block.high(4 + i)) * d + m;
  }
}

/// d and dmin; 12 bytes with eight scales and eight minima of 6 bits; 128 bytes of two values each.
void read_q4_k(BlockBytes block, float* values) {
  const float d = block.half(0);
  const float dmin = block.half(2);
  const auto packed = [&](int i) { return block.at(4 + i); };
  // The upper two bits of scales and minima 4 to 7 lie above those of 0 to 3.
  const auto scale = [&](int j) {
    return j < 4 ? packed(j) & 63 : (packed(j + 4) & 15) | packed(j - 4) >> 6 << 4;
  };
  const auto minimum = [&](int j) {
    return j < 4 ? packed(j + 4) & 63 : packed(j + 4) >> 4 | packed(j) >> 6 << 4;
  };
  for (int j = 0; j < 8; ++j) {
    const float d1 = d * static_cast<float>(scale(j));
    const float m1 = dmin * static_cast<float>(minimum(j));
    // Two groups of 32 values share 32 bytes: the low halves, then the high ones.
    for (int i = 0; i < 32; ++i) {
      const int byte = 16 + j / 2 * 32 + i;
      const int q = j % 2 == 0 ? block.low(byte) : block.high(byte);
      values[32 * j + i] = d1 * static_cast<float>(q) - m1;
    }
  }
}

/// 128 bytes with the low 4 bits of values, 64 with their high 2 bits, 16 signed scales, d.
void read_q6_k(BlockBytes block, float* values) {
  const float d = block.half(208);
  for (int i = 0; i < 256; ++i) {
    const int part = i / 128;  // halves of the block are stored alike
    const int quarter = i % 128 / 32;
    const int l = i % 32;
    const int byte = 64 * part + 32 * (quarter % 2) + l;
    const int low = quarter < 2 ? block.low(byte) : block.high(byte);
    const int high = block.at(128 + 32 * part + l) >> 2 * quarter & 3;
    const int scale = block.at_signed(192 + i / 16);
    values[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
}

}  // namespace

GgufBlock block_of(GgufType type) {
  return type_row(static_cast<std::uint32_t>(type))->block;
}

std::optional<GgufType> parse_gguf_type(std::uint32_t number) {
  const TypeRow* const row = type_row(number);
  if (row == nullptr || row->block.values == 0) return std::nullopt;
  return static_cast<GgufType>(number);
}

std::string gguf_type_name(std::uint32_t number) {
  const TypeRow* const row = type_row(number);
  return row == nullptr ? fmt::format("type {}", number) : std::string(row->name);
}

std::string gguf_type_names() {
  std::vector<std::string> names;
  for (const TypeRow& row : kTypes) {
    if (row.block.values > 0) names.emplace_back(row.name);
  }
  return list_names(names);
}

void dequantize_block(GgufType type, const std::byte* bytes, float* values) {
  const BlockBytes block(bytes);
  switch (type) {
    case GgufType::F32:
      std::memcpy(values, bytes, sizeof(float));
      return;
    case GgufType::F16:
      values[0] = block.half(0);
      return;
    case GgufType::BF16:
      values[0] = block.bf16(0);
      return;
    case GgufType::Q8_0:
      return read_q8_0(block, values);
    case GgufType::Q4_0:
      return read_q4_0(block, values);
    case GgufType::Q4_1:
      return read_q4_1(block, values);
    case GgufType::Q4_K:
      return read_q4_k(block, values);
    case GgufType::Q6_K:
      return read_q6_k(block, values);
  }
  ARMILLARY_CHECK(false);
}

}  // namespace armillary::io
