// feature_sets.h: combinations of the features of attention, for tests of every folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/kernel/score.h"

namespace armillary::kernel {

/// Features as bits; a set of features is their sum.
inline constexpr unsigned kSoftcap = 1;
inline constexpr unsigned kAlibi = 2;
inline constexpr unsigned kSinks = 4;
inline constexpr unsigned kDropout = 8;
inline constexpr unsigned kAllFeatures = 15;

/// The sets to test: no feature, each one alone, every two of them, all.
inline std::vector<unsigned> feature_sets() {
  return {0, 1, 2, 4, 8, 1 + 2, 1 + 4, 1 + 8, 2 + 4, 2 + 8, 4 + 8, kAllFeatures};
}

inline std::string describe_features(unsigned set) {
  std::string text;
  if ((set & kSoftcap) != 0) text += " softcap";
  if ((set & kAlibi) != 0) text += " alibi";
  if ((set & kSinks) != 0) text += " sinks";
  if ((set & kDropout) != 0) text += " dropout";
  return text.empty() ? "no features" : text.substr(1);
}

/// The features of a call, as options of a kernel.
struct Features {
  Score score;
  at::Tensor sinks_H;  ///< fp32; undefined if the set has no sinks
};

/// Features whose values matter for random sequences: the softcap bends scores around 1, slopes
/// differ between heads, and sinks weigh between little and as much as some keys.
inline Features features_of(unsigned set, std::int64_t heads, double scale,
                            std::uint64_t seed = 42) {
  Features features{.score = {.scale = scale}, .sinks_H = {}};
  if ((set & kSoftcap) != 0) features.score.softcap = 1.25;
  if ((set & kAlibi) != 0) {
    features.score.alibi_slopes_H = at::pow(2, at::linspace(-1, -4, heads, at::kFloat));
  }
  if ((set & kSinks) != 0) features.sinks_H = at::linspace(-1, 2, heads, at::kFloat);
  if ((set & kDropout) != 0) features.score.dropout = {.p = 0.3, .seed = seed, .step = 7};
  return features;
}

}  // namespace armillary::kernel
