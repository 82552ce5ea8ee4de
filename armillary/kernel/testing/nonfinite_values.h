// nonfinite_values.h: checks that NaN and Inf reach the rows that see them and no other. For tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "armillary/kernel/testing/dealt_attention.h"

namespace armillary::kernel {

/// Three causal documents of 5 tokens.
inline plan::Mask mask_of_nonfinite_values() {
  return plan::parse_mask("documents:5,5,5", {.q = 15, .kv = 15});
}

/// Replaces query 3, key 7, value 7 or dout 9 of `finite` by NaN, Inf or -Inf, one at a time.
/// Checks that the results of `attention` equal `required`, except in the rows that see the value,
/// none of which is finite. Queries and keys are replaced by NaN only, because an infinite one may
/// give a weight of exactly 0.
inline void expect_nonfinite_values_stay(
    const Sequences& finite, const Results& required,
    const std::function<Results(const Sequences&)>& attention) {
  const double bound = tolerance(finite.q_BSHD.scalar_type());
  for (const double nonfinite : {kNan, kInf, -kInf}) {
    const auto with = [&](const at::Tensor& x, std::int64_t row) {
      at::Tensor copy = x.clone();
      copy.select(1, row).fill_(nonfinite);
      return copy;
    };
    const auto without_rows = [](const at::Tensor& x, plan::Interval rows) {
      return at::cat({x.slice(1, 0, rows.begin), x.slice(1, rows.end)}, 1);
    };
    const auto expect = [&](const char* what, const Sequences& x, at::Tensor Results::*field,
                            plan::Interval rows) {
      const at::Tensor result = attention(x).*field;
      EXPECT_LE(relative_error(without_rows(result, rows), without_rows(required.*field, rows)),
                bound)
          << what << " with " << nonfinite;
      const at::Tensor rest = result.slice(1, rows.begin, rows.end).flatten(2);
      EXPECT_FALSE(rest.isfinite().all(2).any().item<bool>()) << what << " with " << nonfinite;
    };
    Sequences x = finite;
    x.v_BSGE = with(finite.v_BSGE, 7);
    expect("out of a nonfinite value", x, &Results::out_BSHE, {7, 10});
    x = finite;
    x.dout_BSHE = with(finite.dout_BSHE, 9);
    expect("dv of a nonfinite dout", x, &Results::dv_BSGE, {5, 10});
    expect("dq of a nonfinite dout", x, &Results::dq_BSHD, {9, 10});
    if (!std::isnan(nonfinite)) continue;
    x = finite;
    x.q_BSHD = with(finite.q_BSHD, 3);
    expect("out of a nonfinite query", x, &Results::out_BSHE, {3, 4});
    expect("dk of a nonfinite query", x, &Results::dk_BSGD, {0, 4});
    x = finite;
    x.k_BSGD = with(finite.k_BSGD, 7);
    expect("out of a nonfinite key", x, &Results::out_BSHE, {7, 10});
    expect("dq of a nonfinite key", x, &Results::dq_BSHD, {7, 10});
  }
}

}  // namespace armillary::kernel
