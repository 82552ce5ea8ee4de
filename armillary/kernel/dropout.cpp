// The generator Philox4x32-10, and the words of a (query, key) pair.
#include "armillary/kernel/dropout.h"

#include <cmath>

#include "armillary/core/error.h"

namespace armillary::kernel {
namespace {

constexpr double kTwo32 = 4294967296.0;

std::uint32_t low(std::uint64_t x) {
  return static_cast<std::uint32_t>(x);
}

std::uint32_t high(std::uint64_t x) {
  return static_cast<std::uint32_t>(x >> 32);
}

}  // namespace

// Two multiplications per round; the key advances by a Weyl sequence. Constants of the paper.
Words philox4x32_10(Words counter, std::array<std::uint32_t, 2> key) {
  constexpr int kRounds = 10;
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1),
               high(product0) ^ counter[3] ^ key[1], low(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

// The key depends on step, batch entry, head and seed, so streams of different heads are
// independent.
DropoutStream::DropoutStream(const Dropout& dropout, std::int64_t batch, std::int64_t head)
    : threshold_(static_cast<std::uint64_t>(std::llround(dropout.p * kTwo32))),
      kept_(1 / (1 - dropout.p)) {
  const Words words =
      philox4x32_10({low(dropout.step), high(dropout.step), low(static_cast<std::uint64_t>(batch)),
                     low(static_cast<std::uint64_t>(head))},
                    {low(dropout.seed), high(dropout.seed)});
  key_ = {words[0], words[1]};
}

Words DropoutStream::quad(std::int64_t q, std::int64_t number) const {
  const auto row = static_cast<std::uint64_t>(q);
  const auto column = static_cast<std::uint64_t>(number);
  return philox4x32_10({low(row), high(row), low(column), high(column)}, key_);
}

bool DropoutStream::drops(std::int64_t q, std::int64_t k) const {
  return quad(q, k / 4)[static_cast<std::size_t>(k % 4)] < threshold_;
}

template <class Number>
void DropoutStream::fill_row(std::int64_t q, std::span<const std::int64_t> keys,
                             std::span<Number> factors) const {
  ARMILLARY_CHECK(keys.size() == factors.size());
  const auto factor = static_cast<Number>(kept_);
  // Neighbouring keys with equal k / 4 use one call of the generator.
  std::int64_t number = -1;
  Words words{};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] / 4 != number) {
      number = keys[i] / 4;
      words = quad(q, number);
    }
    factors[i] = words[static_cast<std::size_t>(keys[i] % 4)] < threshold_ ? Number{0} : factor;
  }
}

void DropoutStream::fill(std::int64_t q, std::span<const std::int64_t> keys,
                         std::span<float> factors) const {
  fill_row(q, keys, factors);
}

void DropoutStream::fill(std::int64_t q, std::span<const std::int64_t> keys,
                         std::span<double> factors) const {
  fill_row(q, keys, factors);
}

}  // namespace armillary::kernel
