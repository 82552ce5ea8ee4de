// dropout_by_aten.h: the decisions of dropout.h by ATen's Philox generator. For tests.
#pragma once

#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>
#include <cstdint>

#include "armillary/kernel/dropout.h"

namespace armillary::kernel {

/// Whether an entry is dropped, by the formula of dropout.h. ATen's generator takes three 64-bit
/// numbers: the key (seed), the first two words of the counter (offset) and the last two words
/// (subsequence).
inline bool dropped_by_aten(const Dropout& dropout, std::int64_t batch, std::int64_t head,
                            std::int64_t q, std::int64_t k) {
  const auto word = [](auto x) { return static_cast<std::uint64_t>(x); };
  at::Philox4_32 of_head(dropout.seed, word(head) << 32 | word(batch), dropout.step);
  const std::uint64_t low = of_head();
  const std::uint64_t key = word(of_head()) << 32 | low;
  at::Philox4_32 of_quad(key, word(k / 4), word(q));
  for (std::int64_t i = 0; i < k % 4; ++i) of_quad();
  return of_quad() < std::ldexp(dropout.p, 32);
}

}  // namespace armillary::kernel
