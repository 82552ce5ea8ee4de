// named_random.cpp: the key of a name is a chain of Philox over its bytes, 16 at a time.
#include "armillary/model/named_random.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "armillary/kernel/dropout.h"

namespace armillary::model {
namespace {

using kernel::philox4x32_10;
using kernel::Words;
using PhiloxKey = std::array<std::uint32_t, 2>;

PhiloxKey words_of(std::uint64_t x) {
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

PhiloxKey key_of(std::int64_t seed, std::string_view name) {
  const PhiloxKey start = words_of(static_cast<std::uint64_t>(seed));
  // The length first, so that no name is the beginning of another.
  Words state = {static_cast<std::uint32_t>(name.size()), 0, 0, 0};
  state = philox4x32_10(state, start);
  for (; !name.empty(); name.remove_prefix(std::min(name.size(), sizeof(Words)))) {
    for (std::size_t i = 0; i < std::min(name.size(), sizeof(Words)); ++i) {
      state[i / 4] ^= static_cast<std::uint32_t>(static_cast<unsigned char>(name[i])) << i % 4 * 8;
    }
    state = philox4x32_10(state, start);
  }
  return {state[0], state[1]};
}

/// Words 4 quad to 4 quad + 3 of a key.
Words words_at(const PhiloxKey& key, std::uint64_t quad) {
  const PhiloxKey counter = words_of(quad);
  return philox4x32_10({counter[0], counter[1], 0, 0}, key);
}

/// The chance that a word stands for, never 0 or 1.
double chance_of(std::uint32_t word) {
  constexpr double kTwo32 = 4294967296.0;
  return (word + 0.5) / kTwo32;
}

/// Natural logarithm by 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)).
double log_of(double x) {
  constexpr double kLog2 = 0.69314718055994530942;
  constexpr double kRootOfHalf = 0.70710678118654752440;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < kRootOfHalf) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 21; k > 0; k -= 2) sum = sum * s * s + 1.0 / k;
  return 2 * s * sum + exponent * kLog2;
}

}  // namespace

NamedRandom::NamedRandom(std::int64_t seed, std::string_view name) : key_(key_of(seed, name)) {}

double NamedRandom::uniform(std::int64_t index) const {
  const auto number = static_cast<std::uint64_t>(index);
  return chance_of(words_at(key_, number / 4)[number % 4]);
}

void NamedRandom::fill_normal(std::int64_t begin, std::span<float> values, double mean,
                              double deviation) const {
  Words words{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<std::uint64_t>(begin) + i;
    if (i == 0 || index % 4 == 0) words = words_at(key_, index / 4);
    values[i] = static_cast<float>(mean + deviation * normal_quantile(chance_of(words[index % 4])));
  }
}

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((5.9109374720e1 * r + 1.5929113202e2) * r + 5.0434271938e1) * r + 3.3871327179) /
           (((6.7187563600e1 * r + 7.8757757664e1) * r + 1.7895169469e1) * r + 1);
  }
  const double r = std::sqrt(-log_of(std::min(p, 1 - p))) - 1.6;
  const double value =
      (((1.7023821103e-1 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
      ((1.2021132975e-1 * r + 7.3700164250e-1) * r + 1);
  return q < 0 ? -value : value;
}

}  // namespace armillary::model
