// dropout_test.cpp: the random numbers of dropout: known answers of Random123, equality with ATen's
// generator, the share that is dropped, and that every part of the key matters.
#include "armillary/kernel/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/testing/dropout_by_aten.h"

namespace armillary::kernel {
namespace {

// Known answers of Random123 1.14, kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, EqualsRandom123) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The formula of the header, word by word, with numbers above 32 bits.
TEST(DropoutStream, IsWhatTheHeaderSays) {
  const Dropout dropout{.p = 0.5, .seed = 0x0123456789abcdef, .step = 0xfedcba9876543210};
  const Words stream = philox4x32_10({0x76543210, 0xfedcba98, 3, 5}, {0x89abcdef, 0x01234567});
  const std::int64_t q = (std::int64_t{9} << 32) + 11;
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{6}, (std::int64_t{1} << 40) + 3}) {
    const auto quad = static_cast<std::uint64_t>(k / 4);
    const Words words = philox4x32_10(
        {11, 9, static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(quad >> 32)},
        {stream[0], stream[1]});
    EXPECT_EQ(DropoutStream(dropout, 3, 5).drops(q, k), words[k % 4] < 0x80000000u) << k;
  }
}

// Each number is once small and once above 32 bits. If the code left out a word, half of the 2,916
// entries with that word would change.
TEST(DropoutStream, EqualsAtensGeneratorForNumbersOfAnySize) {
  const std::vector<std::uint64_t> seeds = {5, 0x0123456700000005, 0xfedcba9800000005};
  const std::vector<std::uint64_t> steps = {7, 0x0000000100000007, 0x8000000000000007};
  const std::vector<std::int64_t> places = {0, 1, 0xffffffff};
  const std::vector<std::int64_t> queries = {3, (std::int64_t{9} << 32) + 3, std::int64_t{1} << 55};
  const std::vector<std::int64_t> keys = {
      0, 1, 6, 11, (std::int64_t{1} << 40) + 6, (std::int64_t{1} << 55) + 3};
  for (const std::uint64_t seed : seeds) {
    for (const std::uint64_t step : steps) {
      for (const std::int64_t batch : places) {
        for (const std::int64_t head : {std::int64_t{0}, std::int64_t{2}}) {
          const Dropout dropout{.p = 0.4, .seed = seed, .step = step};
          const DropoutStream stream(dropout, batch, head);
          for (const std::int64_t q : queries) {
            for (const std::int64_t k : keys) {
              ASSERT_EQ(stream.drops(q, k), dropped_by_aten(dropout, batch, head, q, k))
                  << "seed " << seed << ", step " << step << ", batch " << batch << ", head "
                  << head << ", query " << q << ", key " << k;
            }
          }
        }
      }
    }
  }
}

// Any order of rows in a call: neighbours, stripes, backwards.
TEST(DropoutStream, FillsRowsByTheKeyAlone) {
  const DropoutStream stream({.p = 0.4, .seed = 1, .step = 2}, 0, 1);
  for (const std::vector<std::int64_t>& keys : {std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7},
                                                {2, 3, 4, 9, 8},
                                                {1, 4, 7, 10, 1 << 20},
                                                {}}) {
    std::vector<float> floats(keys.size());
    std::vector<double> doubles(keys.size());
    stream.fill(6, keys, floats);
    stream.fill(6, keys, doubles);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(doubles[i], stream.drops(6, keys[i]) ? 0.0 : 1 / (1 - 0.4)) << keys[i];
      EXPECT_EQ(floats[i], static_cast<float>(doubles[i])) << keys[i];
    }
  }
}

std::vector<bool> drops_of(const Dropout& dropout, std::int64_t batch, std::int64_t head) {
  const DropoutStream stream(dropout, batch, head);
  std::vector<bool> drops;
  for (std::int64_t q = 0; q < 200; ++q) {
    for (std::int64_t k = 0; k < 200; ++k) drops.push_back(stream.drops(q, k));
  }
  return drops;
}

double share(const std::vector<bool>& drops) {
  double count = 0;
  for (const bool drop : drops) count += drop ? 1 : 0;
  return count / static_cast<double>(drops.size());
}

// 40,000 entries: within 5 standard deviations of p.
TEST(DropoutStream, DropsAShareOfP) {
  for (const double p : {0.0, 0.01, 0.1, 0.5, 0.9, 0.999}) {
    const double deviation = std::sqrt(p * (1 - p) / 40000);
    EXPECT_NEAR(share(drops_of({.p = p, .seed = 5, .step = 6}, 0, 0)), p, 5 * deviation);
  }
}

// Two streams agree only by chance: for p = 1/2 in half of the entries.
TEST(DropoutStream, EverythingInTheKeyMatters) {
  const Dropout dropout{.p = 0.5, .seed = 5, .step = 6};
  const std::vector<bool> reference = drops_of(dropout, 0, 0);
  EXPECT_EQ(drops_of(dropout, 0, 0), reference);
  const auto agreement = [&](const std::vector<bool>& other) {
    double agree = 0;
    for (std::size_t i = 0; i < other.size(); ++i) agree += other[i] == reference[i] ? 1 : 0;
    return agree / static_cast<double>(other.size());
  };
  constexpr double kBound = 5 * 0.0025;
  EXPECT_NEAR(agreement(drops_of({.p = 0.5, .seed = 4, .step = 6}, 0, 0)), 0.5, kBound);
  EXPECT_NEAR(agreement(drops_of({.p = 0.5, .seed = 5, .step = 7}, 0, 0)), 0.5, kBound);
  EXPECT_NEAR(agreement(drops_of({.p = 0.5, .seed = 6, .step = 5}, 0, 0)), 0.5, kBound);
  // Streams that differ only in the high word of seed or step.
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
  EXPECT_NEAR(agreement(drops_of({.p = 0.5, .seed = 5 + kHigh, .step = 6}, 0, 0)), 0.5, kBound);
  EXPECT_NEAR(agreement(drops_of({.p = 0.5, .seed = 5, .step = 6 + kHigh}, 0, 0)), 0.5, kBound);
  EXPECT_NEAR(agreement(drops_of(dropout, 1, 0)), 0.5, kBound);
  EXPECT_NEAR(agreement(drops_of(dropout, 0, 1)), 0.5, kBound);
  // Query and key cannot be exchanged, and neighbours differ.
  std::vector<bool> transposed;
  std::vector<bool> shifted;
  for (std::size_t q = 0; q < 200; ++q) {
    for (std::size_t k = 0; k < 200; ++k) {
      transposed.push_back(reference[k * 200 + q]);
      shifted.push_back(reference[q * 200 + (k + 1) % 200]);
    }
  }
  EXPECT_NEAR(agreement(transposed), 0.5, kBound + 0.0025);  // the diagonal agrees
  EXPECT_NEAR(agreement(shifted), 0.5, kBound);
}

// A golden row: a change here changes every training run with dropout.
TEST(DropoutStream, SameEntriesInEveryRelease) {
  const DropoutStream stream({.p = 0.25, .seed = 2026, .step = 1}, 1, 2);
  std::string row;
  for (std::int64_t k = 0; k < 32; ++k) row += stream.drops(100, k) ? 'x' : '.';
  EXPECT_EQ(row, "..x.............x.....x.....xx..");
}

}  // namespace
}  // namespace armillary::kernel
