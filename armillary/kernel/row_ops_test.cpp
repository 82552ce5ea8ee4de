// merge, add and delta of every instruction set against softmax and sums by ATen in fp64.
// kernel::merge and its siblings use only the best instruction set.
#include "armillary/kernel/cpu/row_ops.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"
#include "armillary/kernel/testing/dealt_attention.h"

namespace armillary::kernel {
namespace {

class RowOps : public KernelTest {
 protected:
  const cpu::IsaKernels& isa() const { return cpu::isa_named(GetParam()); }

  /// Calls visit(dtype, width, where) for rows that fill vectors and rows that do not.
  template <class Visit>
  static void for_each_width(Visit visit) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t width : {1, 5, 64, 131}) {
        at::manual_seed(static_cast<std::uint64_t>(width));
        visit(dtype, width, fmt::format("{} of {}", width, c10::toString(dtype)));
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Isas, RowOps, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

/// Attention over keys [begin, end) of the given scores, by softmax and logsumexp. The first
/// `empty` rows of the second batch entry see none of these keys.
Partial attended(const at::Tensor& scores_BLHK, const at::Tensor& v_KE, plan::Interval keys,
                 std::int64_t empty) {
  const at::Tensor part = scores_BLHK.slice(-1, keys.begin, keys.end);
  Partial partial{part.softmax(-1).matmul(v_KE.slice(0, keys.begin, keys.end)), part.logsumexp(-1)};
  partial.out_BLHE.select(0, 1).slice(0, 0, empty).zero_();
  partial.lse_BLH.select(0, 1).slice(0, 0, empty).fill_(-kInf);
  return partial;
}

// 2 x 70 x 3 rows are not a multiple of the rows of a chunk. In the last batch entry, rows 0 to 9
// saw no key on either side, and rows 10 to 19 saw keys on one side only.
TEST_P(RowOps, MergedRowsAreSoftmaxOverBothSetsOfKeys) {
  for_each_width([&](at::ScalarType dtype, std::int64_t width, const std::string& where) {
    const at::Tensor scores = 9 * at::randn({2, 70, 3, 12}, at::kDouble);
    const at::Tensor values = at::randn({12, width}, at::kDouble);
    const Partial a = attended(scores, values, {0, 5}, 20);
    const Partial b = attended(scores, values, {5, 12}, 10);
    Partial required = attended(scores, values, {0, 12}, 10);
    required.out_BLHE[1].slice(0, 10, 20).copy_(b.out_BLHE[1].slice(0, 10, 20));
    required.lse_BLH[1].slice(0, 10, 20).copy_(b.lse_BLH[1].slice(0, 10, 20));

    const at::Tensor out = in_slot(a.out_BLHE.to(at::kFloat));
    const at::Tensor lse = in_slot(a.lse_BLH.to(at::kFloat));
    const at::Tensor other_out = in_slot(b.out_BLHE.to(dtype));
    const at::Tensor other_lse = in_slot(b.lse_BLH.to(at::kFloat));
    cpu::merge(isa(), {},
               {.shape = shape_of(out),
                .out = output_of(out),
                .lse = output_of(lse),
                .other_out = input_of(other_out),
                .other_element = element_of(dtype),
                .other_lse = output_of(other_lse)});
    const double rounding = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
    EXPECT_LE(relative_error(out, required.out_BLHE), rounding) << where;
    EXPECT_LE(relative_error(lse, required.lse_BLH), 1e-6) << where;
  });
}

TEST_P(RowOps, AddedRowsAreSums) {
  for_each_width([&](at::ScalarType dtype, std::int64_t width, const std::string& where) {
    const at::Tensor before = at::randn({2, 70, 3, width});
    const at::Tensor sum = in_slot(before);
    const at::Tensor part = in_slot(at::randn({2, 70, 3, width}).to(dtype));
    cpu::add(isa(), {},
             {.shape = shape_of(sum),
              .sum = output_of(sum),
              .part = input_of(part),
              .part_element = element_of(dtype)});
    EXPECT_TRUE(at::equal(sum, before + part.to(at::kFloat))) << where;
  });
}

TEST_P(RowOps, DeltaIsTheRowSumOfProducts) {
  for_each_width([&](at::ScalarType dtype, std::int64_t width, const std::string& where) {
    const at::Tensor dout = in_slot(at::randn({2, 70, 3, width}).to(dtype));
    const at::Tensor out = in_slot(at::randn({2, 70, 3, width}).to(dtype));
    const at::Tensor result = in_slot(at::full({2, 70, 3}, kNan, at::kFloat));
    cpu::delta(isa(), {},
               {.shape = shape_of(out),
                .dout = input_of(dout),
                .out = input_of(out),
                .element = element_of(dtype),
                .delta = output_of(result)});
    const at::Tensor required = (dout.to(at::kDouble) * out.to(at::kDouble)).sum(-1);
    EXPECT_LE(relative_error(result, required), 1e-6) << where;
  });
}

}  // namespace
}  // namespace armillary::kernel
