#include "armillary/comm/strided.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

TEST(Strided, CountsBytes) {
  std::byte memory[64];
  EXPECT_EQ(total_bytes({}), 0);
  const std::vector<Strided> parts = {{memory, 3, 5, 7}, {memory, 0, 9, 9}, {memory, 4, 0, 1}};
  EXPECT_EQ(total_bytes(parts), 15);
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const std::vector<Strided> product = {{memory, kHuge, 2, 2}};
  const std::vector<Strided> sum = {{memory, kHuge, 1, 1}, {memory, 1, 1, 1}};
  EXPECT_THROW(total_bytes(product), InvalidArgument);
  EXPECT_THROW(total_bytes(sum), InvalidArgument);
}

TEST(Strided, FindsBytesThatLieInOneRow) {
  std::byte memory[64];
  const auto begin = [](std::vector<Strided> parts) { return one_row(parts); };
  EXPECT_EQ(begin({}), nullptr);
  EXPECT_EQ(begin({{memory, 0, 9, 9}, {memory + 8, 1, 5, 0}, {memory, 4, 0, 1}}), memory + 8);
  EXPECT_EQ(begin({{memory, 3, 5, 5}}), memory);
  EXPECT_EQ(begin({{memory, 3, 5, 7}}), nullptr);
  EXPECT_EQ(begin({{memory, 1, 5, 5}, {memory + 5, 1, 5, 5}}), nullptr);
}

/// Cuts `bytes` into random parts with gaps; returns them and, in order, the offset of each byte.
std::pair<std::vector<Strided>, std::vector<std::int64_t>> random_parts(std::byte* memory,
                                                                        std::int64_t bytes,
                                                                        std::mt19937& random) {
  const auto draw = [&](std::int64_t low, std::int64_t high) {  // Both ends included.
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<Strided> parts;
  std::vector<std::int64_t> offsets;
  std::int64_t at = 0;
  while (bytes > 0 || draw(0, 3) == 0) {
    const std::int64_t row_bytes = draw(0, bytes);
    const std::int64_t rows = draw(0, row_bytes == 0 ? 3 : bytes / row_bytes);
    const std::int64_t stride = row_bytes + draw(0, 3);
    parts.push_back({memory + at, rows, row_bytes, stride});
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < row_bytes; ++i) offsets.push_back(at + row * stride + i);
    }
    bytes -= rows * row_bytes;
    at += rows * stride + 1;
  }
  return {parts, offsets};
}

TEST(Strided, CopiesByteByByteInOrder) {
  for (int seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const std::int64_t bytes = seed % 40;
    std::vector<std::byte> source(4096);
    std::vector<std::byte> target(4096, std::byte{0});
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(1 + i % 251);
    const auto [from, from_offsets] = random_parts(source.data(), bytes, random);
    const auto [to, to_offsets] = random_parts(target.data(), bytes, random);
    std::vector<std::byte> expected = target;
    for (std::int64_t i = 0; i < bytes; ++i) expected[to_offsets[i]] = source[from_offsets[i]];
    copy_strided(from, to);
    ASSERT_EQ(target, expected) << "seed " << seed << ", " << bytes << " bytes";
  }
}

}  // namespace
}  // namespace armillary::comm
