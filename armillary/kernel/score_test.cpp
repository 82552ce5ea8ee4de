#include "armillary/kernel/score.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "armillary/core/testing/expect_error.h"
#include "armillary/kernel/testing/dealt_attention.h"

namespace armillary::kernel {
namespace {

std::string score_error(const Score& score) {
  return error_of([&] { check_score("attend", score, 4); });
}

TEST(Score, IsPlainWithoutFeatures) {
  EXPECT_TRUE(Score{}.plain());
  EXPECT_TRUE((Score{.scale = 3, .dropout = {.p = 0, .seed = 4, .step = 5}}.plain()));
  EXPECT_FALSE((Score{.softcap = 1}.plain()));
  EXPECT_FALSE((Score{.alibi_slopes_H = at::ones({1})}.plain()));
  EXPECT_FALSE((Score{.dropout = {.p = 0.1}}.plain()));
}

TEST(Score, TakesWhatFits) {
  EXPECT_EQ(score_error({.scale = -2,
                         .softcap = 1e-3,
                         .alibi_slopes_H = at::ones({5}),
                         .dropout = {.p = 0.999, .seed = 1, .step = 2}}),
            "no error");
}

TEST(Score, RefusesNumbersOutOfRange) {
  EXPECT_EQ(score_error({.scale = kInf}), "attend: scale inf; a finite number is required");
  for (const double softcap : {0.0, -1.0, kInf, std::nan("")}) {
    EXPECT_EQ(
        score_error({.softcap = softcap}),
        fmt::format("attend: softcap {}; a finite number above 0 is required, or none", softcap));
  }
  for (const double p : {-0.1, 1.0, kInf, std::nan("")}) {
    EXPECT_EQ(score_error({.dropout = {.p = p}}),
              fmt::format("attend: dropout p {}; at least 0 and below 1 is required", p));
  }
}

TEST(Score, RefusesSlopes) {
  const auto error = [](const at::Tensor& slopes_H) {
    return score_error({.alibi_slopes_H = slopes_H});
  };
  EXPECT_EQ(error(at::ones({3})),
            "attend: alibi_slopes_H is Float [3]; Float [4] is required, of all heads");
  EXPECT_EQ(error(at::ones({4, 1})),
            "attend: alibi_slopes_H is Float [4, 1]; Float [4] is required, of all heads");
  EXPECT_EQ(error(at::ones({4}, at::kDouble)),
            "attend: alibi_slopes_H is Double [4]; Float [4] is required, of all heads");
  EXPECT_EQ(error(at::ones({4}).requires_grad_()),
            "attend: alibi_slopes_H requires a gradient; slopes are constants: detach()");
}

TEST(Slopes, OneFiniteSlopePerHead) {
  const auto error = [](const at::Tensor& slopes_H) {
    return error_of([&] { check_slopes("attention", slopes_H, 4); });
  };
  EXPECT_EQ(error({}), "no error");
  EXPECT_EQ(error(at::zeros({4})), "no error");
  EXPECT_EQ(error(at::ones({5})),
            "attention: alibi_slopes_H is [5]; one slope per query head, [4], is required");
  EXPECT_EQ(error(at::full({4}, kInf)),
            "attention: alibi_slopes_H has a slope that is not finite; all must be");
  EXPECT_EQ(error(at::full({4}, std::nan(""))),
            "attention: alibi_slopes_H has a slope that is not finite; all must be");
}

}  // namespace
}  // namespace armillary::kernel
