// Clears, merges, adds and finishes partial results.
//
// Contiguous rows of fp32, bf16 or fp16 on a CPU go to the row ops of the CPU kernel, which read
// and write memory once. Other tensors go to ATen. Sinks are merged as a partial over one more key.
#include "armillary/kernel/merge.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <limits>

#include "armillary/core/error.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"

namespace armillary::kernel {
namespace {

void expect_alike(const char* where, const char* what, const at::Tensor& result,
                  const at::Tensor& required) {
  if (result.sizes() != required.sizes()) {
    fail<InvalidArgument>("{}: {} has shape [{}]; [{}] is required", where, what,
                          fmt::join(result.sizes(), ", "), fmt::join(required.sizes(), ", "));
  }
}

/// a - b for two log-sum-exps. The weight exp(a - lse) of a merge is sigmoid(a - b), which is
/// exactly 1 or 0 if one side is empty. Equal sides get 0, because -inf - -inf would be NaN.
at::Tensor lead(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).masked_fill_(a == b, 0);
}

/// `result` has the shape of x without its last dim, as lse has that of out.
void expect_alike_but_last(const char* where, const char* what, const at::Tensor& result,
                           const at::Tensor& x) {
  if (x.dim() == 0 || result.sizes() != x.sizes().slice(0, x.dim() - 1)) {
    fail<InvalidArgument>("{}: {} has shape [{}]; [{}] without its last dim is required", where,
                          what, fmt::join(result.sizes(), ", "), fmt::join(x.sizes(), ", "));
  }
}

/// The dtypes of an accumulator and a part of it, which may have travelled in the input dtype.
void expect_addable(const char* where, const at::Tensor& sum, const at::Tensor& part) {
  const at::ScalarType dtype = part.scalar_type();
  if (dtype != sum.scalar_type() && accumulator(dtype) != sum.scalar_type()) {
    fail<InvalidArgument>("{}: {} into {}; one dtype, or bf16 or fp16 into Float, is required",
                          where, c10::toString(dtype), c10::toString(sum.scalar_type()));
  }
}

/// Whether a row op of the CPU kernel takes both, so one pass over memory replaces several of ATen.
bool suit_row_ops(const at::Tensor& sum, const at::Tensor& part) {
  return suits_row_ops(sum) && sum.scalar_type() == at::kFloat && suits_row_ops(part);
}

/// Threads for row ops of `flops_each` per element.
cpu::Team team_of(const at::Tensor& x, double flops_each) {
  return intra_op_team(flops_each * static_cast<double>(x.numel()));
}

/// merge() by the row op of the CPU kernel.
void merge_rows(const Partial& acc, const at::Tensor& other_out, const at::Tensor& other_lse) {
  const at::Tensor& out = acc.out_BLHE;
  cpu::merge(cpu::current_isa(), team_of(out, 4.0),
             {.shape = shape_of(out),
              .out = output_of(out),
              .lse = output_of(acc.lse_BLH),
              .other_out = input_of(other_out),
              .other_element = element_of(other_out.scalar_type()),
              .other_lse = output_of(other_lse)});
}

/// Merges a partial over one key per head, whose score is the sink and whose value is 0.
void merge_sinks(Partial& partial, const at::Tensor& sinks_H) {
  const at::Tensor& lse = partial.lse_BLH;
  if (lse.dim() == 0 || sinks_H.sizes() != lse.sizes().slice(lse.dim() - 1) ||
      sinks_H.scalar_type() != lse.scalar_type()) {
    fail<InvalidArgument>("finish: sinks are {} [{}]; {}, one per head of lse [{}], is required",
                          c10::toString(sinks_H.scalar_type()), fmt::join(sinks_H.sizes(), ", "),
                          c10::toString(lse.scalar_type()), fmt::join(lse.sizes(), ", "));
  }
  // The row op reads the same zeros and the same logits for every row: strides of 0.
  at::Tensor& out = partial.out_BLHE;
  if (suits_row_ops(out) && out.size(3) <= cpu::kMaxDim) {
    static constexpr float kNoValue[cpu::kMaxDim] = {};
    cpu::merge(
        cpu::current_isa(), team_of(out, 4.0),
        {.shape = shape_of(out),
         .out = output_of(out),
         .lse = output_of(lse),
         .other_out = {.data = kNoValue},
         .other_lse = {.data = sinks_H.mutable_data_ptr<float>(), .head = sinks_H.stride(0)}});
    return;
  }
  const at::Tensor nothing = at::zeros({1}, out.options());
  merge(partial, {nothing.expand(out.sizes()), sinks_H.expand(lse.sizes())});
}

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.strides() == b.strides();
}

}  // namespace

void clear(Partial& partial) {
  const c10::NoGradGuard no_grad;
  partial.out_BLHE.zero_();
  partial.lse_BLH.fill_(-std::numeric_limits<double>::infinity());
}

void merge(Partial& acc, const Partial& other) {
  const c10::NoGradGuard no_grad;
  expect_alike("merge", "other.out", other.out_BLHE, acc.out_BLHE);
  expect_alike("merge", "other.lse", other.lse_BLH, acc.lse_BLH);
  expect_alike_but_last("merge", "acc.lse", acc.lse_BLH, acc.out_BLHE);
  expect_addable("merge", acc.out_BLHE, other.out_BLHE);
  if (suit_row_ops(acc.out_BLHE, other.out_BLHE)) {
    return merge_rows(acc, other.out_BLHE, other.lse_BLH);
  }
  // By ATen: the weight of each side is a sigmoid of the distance of their log-sum-exps.
  const at::Tensor& a = acc.lse_BLH;
  const at::Tensor& b = other.lse_BLH;
  const at::Tensor distance = lead(a, b).unsqueeze(-1);
  acc.out_BLHE.mul_(at::sigmoid(distance))
      .addcmul_(other.out_BLHE.to(acc.out_BLHE.scalar_type()), at::sigmoid(-distance));
  acc.lse_BLH.copy_(at::logaddexp(a, b));
}

void add(const at::Tensor& sum, const at::Tensor& part) {
  const c10::NoGradGuard no_grad;
  expect_alike("add", "part", part, sum);
  expect_addable("add", sum, part);
  if (!suit_row_ops(sum, part)) {
    sum.add_(part);
    return;
  }
  cpu::add(cpu::current_isa(), team_of(sum, 1.0),
           {.shape = shape_of(sum),
            .sum = output_of(sum),
            .part = input_of(part),
            .part_element = element_of(part.scalar_type())});
}

void finish(const Partial& partial, at::Tensor& out_BLHE, at::Tensor& lse_BLH,
            const at::Tensor& sinks_H) {
  const c10::NoGradGuard no_grad;
  expect_alike("finish", "out", out_BLHE, partial.out_BLHE);
  expect_alike("finish", "lse", lse_BLH, partial.lse_BLH);
  // A result of lower precision is rounded once, after the sinks: they join in a copy.
  if (sinks_H.defined() && out_BLHE.scalar_type() != partial.out_BLHE.scalar_type()) {
    Partial with_sinks{partial.out_BLHE.clone(), partial.lse_BLH.clone()};
    merge_sinks(with_sinks, sinks_H);
    return finish(with_sinks, out_BLHE, lse_BLH);
  }
  // Otherwise they join in the memory of the result.
  if (!shares_memory(out_BLHE, partial.out_BLHE)) out_BLHE.copy_(partial.out_BLHE);
  if (!shares_memory(lse_BLH, partial.lse_BLH)) lse_BLH.copy_(partial.lse_BLH);
  Partial result{out_BLHE, lse_BLH};
  if (sinks_H.defined()) merge_sinks(result, sinks_H);
}

}  // namespace armillary::kernel
