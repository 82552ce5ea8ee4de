// sampling.cpp: tokens are sorted by logit, equal ones by number, and the sums over them are fp64
// in this order.
#include "armillary/serve/sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/dropout.h"

namespace armillary::serve {
namespace {

/// A number in [0, 1) with 53 random bits.
double uniform(std::uint64_t seed, DrawPlace place) {
  const auto words_of = [](std::uint64_t x) {
    return std::array<std::uint32_t, 2>{static_cast<std::uint32_t>(x),
                                        static_cast<std::uint32_t>(x >> 32)};
  };
  const auto position = words_of(static_cast<std::uint64_t>(place.position));
  const auto sequence = words_of(place.sequence);
  const kernel::Words words =
      kernel::philox4x32_10({position[0], position[1], sequence[0], sequence[1]}, words_of(seed));
  const std::uint64_t bits = std::uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void check_logits(std::span<const double> logits) {
  const bool has_nan = std::ranges::any_of(logits, [](double x) { return std::isnan(x); });
  const double most = logits.empty() || has_nan ? -std::numeric_limits<double>::infinity()
                                                : *std::ranges::max_element(logits);
  if (std::isfinite(most)) return;
  fail<InvalidArgument>(
      "generate: {} logits, {}; finite ones, or -inf for some of them, are required", logits.size(),
      has_nan ? "one of them NaN" : "none of them finite, or one infinite");
}

}  // namespace

void check_sampling(const Sampling& sampling) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature)) {
    fail<InvalidArgument>("generate: temperature {} given; 0 or more is required",
                          sampling.temperature);
  }
  if (sampling.top_k < 0) {
    fail<InvalidArgument>("generate: top-k {} given; at least 1, or 0 for all, is required",
                          sampling.top_k);
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    fail<InvalidArgument>("generate: top-p {} given; more than 0 and at most 1 is required",
                          sampling.top_p);
  }
}

std::int64_t next_token(const at::Tensor& logits_V, const Sampling& sampling, DrawPlace place) {
  const at::Tensor wide_V = logits_V.detach().to(at::kDouble).contiguous();
  const std::span logits(wide_V.const_data_ptr<double>(), static_cast<std::size_t>(wide_V.numel()));
  check_logits(logits);
  if (sampling.temperature == 0) {
    return std::ranges::max_element(logits) - logits.begin();  // The first of equal ones.
  }
  // The tokens that may be drawn, most likely first.
  std::vector<std::int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), std::int64_t{0});
  const auto is_before = [&](std::int64_t a, std::int64_t b) {
    const double left = logits[static_cast<std::size_t>(a)];
    const double right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  std::ranges::sort(tokens, is_before);
  if (sampling.top_k > 0 && sampling.top_k < static_cast<std::int64_t>(tokens.size())) {
    tokens.resize(static_cast<std::size_t>(sampling.top_k));
  }
  // Sums of their weights; the largest weight is 1.
  const double most = logits[static_cast<std::size_t>(tokens.front())];
  std::vector<double> sums;
  double sum = 0;
  for (const std::int64_t token : tokens) {
    sum += std::exp((logits[static_cast<std::size_t>(token)] - most) / sampling.temperature);
    sums.push_back(sum);
  }
  if (sampling.top_p < 1) {
    const auto last = std::ranges::lower_bound(sums, sampling.top_p * sum);
    sums.resize(static_cast<std::size_t>(last - sums.begin()) + 1);
  }
  const double drawn = uniform(sampling.seed, place) * sums.back();
  const auto token = std::ranges::upper_bound(sums, drawn);
  return tokens[std::min(static_cast<std::size_t>(token - sums.begin()), sums.size() - 1)];
}

}  // namespace armillary::serve
