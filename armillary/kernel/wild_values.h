// wild_values.h: NaN and infinities reach the rows that see them and no other. Tests only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "armillary/kernel/dealt_attention.h"

namespace armillary::kernel {

/// Under this mask documents of 5 tokens and causality say what sees what.
inline plan::Mask mask_of_wild_values() {
  return plan::parse_mask("documents:5,5,5", {.q = 15, .kv = 15});
}

/// Makes query 3, key 7, value 7 or dout 9 of `tame` wild, one after the other: what comes out of
/// `attention` equals `required` of `tame` but for the rows that see it, none of which is finite. A
/// wild query or key is NaN only: an infinite one may make a weight of exactly 0.
inline void expect_wild_values_stay(const Sequences& tame, const Results& required,
                                    const std::function<Results(const Sequences&)>& attention) {
  const double bound = tolerance(tame.q_BSHD.scalar_type());
  for (const double wild : {kNan, kInf, -kInf}) {
    const auto with = [&](const at::Tensor& x, std::int64_t row) {
      at::Tensor copy = x.clone();
      copy.select(1, row).fill_(wild);
      return copy;
    };
    const auto tame_but = [](const at::Tensor& x, plan::Interval rows) {
      return at::cat({x.slice(1, 0, rows.begin), x.slice(1, rows.end)}, 1);
    };
    const auto expect = [&](const char* what, const Sequences& x, at::Tensor Results::*field,
                            plan::Interval rows) {
      const at::Tensor given = attention(x).*field;
      EXPECT_LE(relative_error(tame_but(given, rows), tame_but(required.*field, rows)), bound)
          << what << " with " << wild;
      const at::Tensor rest = given.slice(1, rows.begin, rows.end).flatten(2);
      EXPECT_FALSE(rest.isfinite().all(2).any().item<bool>()) << what << " with " << wild;
    };
    Sequences x = tame;
    x.v_BSGE = with(tame.v_BSGE, 7);
    expect("out of a wild value", x, &Results::out_BSHE, {7, 10});
    x = tame;
    x.dout_BSHE = with(tame.dout_BSHE, 9);
    expect("dv of a wild dout", x, &Results::dv_BSGE, {5, 10});
    expect("dq of a wild dout", x, &Results::dq_BSHD, {9, 10});
    if (!std::isnan(wild)) continue;
    x = tame;
    x.q_BSHD = with(tame.q_BSHD, 3);
    expect("out of a wild query", x, &Results::out_BSHE, {3, 4});
    expect("dk of a wild query", x, &Results::dk_BSGD, {0, 4});
    x = tame;
    x.k_BSGD = with(tame.k_BSGD, 7);
    expect("out of a wild key", x, &Results::out_BSHE, {7, 10});
    expect("dq of a wild key", x, &Results::dq_BSHD, {7, 10});
  }
}

}  // namespace armillary::kernel
