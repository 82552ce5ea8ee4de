// Forward and backward are single kernel calls over all pairs of the rank, as a plan without
// messages makes them: attend_all, then delta and attend_grad_all.
#include "armillary/lab/bench/attention_case.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>

#include "armillary/core/error.h"
#include "armillary/kernel/reference.h"
#include "armillary/runtime/dtypes.h"

namespace armillary::bench {
namespace {

/// The first heads in fp64, for the reference kernel.
at::Tensor first_heads(const at::Tensor& x_BLHX, std::int64_t heads) {
  return x_BLHX.narrow(2, 0, heads).to(at::kDouble);
}

}  // namespace

// Outputs have the dtype of dout, log-sum-exp and Delta that of the kernel's accumulator.
AttentionCase::AttentionCase(const kernel::Kernel& kernel, const kernel::Pairs& pairs,
                             kernel::Inputs inputs, at::Tensor dout_BLHE)
    : kernel_(kernel), pairs_(pairs), inputs_(std::move(inputs)), dout_(std::move(dout_BLHE)) {
  // The executor prepares when it compiles a plan, so preparing is not a part of the time.
  pairs_.prepared = kernel.prepare(pairs_);
  const auto acc = at::TensorOptions(kernel::accumulator(dout_.scalar_type()));
  result_ = {at::empty_like(dout_), at::empty(dout_.sizes().slice(0, 3), acc)};
  delta_ = at::empty_like(result_.lse_BLH);
  grads_ = {at::empty_like(inputs_.q_BLHD), at::empty_like(inputs_.k_BLGD),
            at::empty_like(inputs_.v_BLGE)};
}

void AttentionCase::forward() {
  kernel_.attend_all(pairs_, inputs_, {}, result_);
}

void AttentionCase::backward() {
  kernel::delta(dout_, result_.out_BLHE, delta_);
  kernel_.attend_grad_all(pairs_, inputs_, {dout_, result_.lse_BLH, delta_}, grads_);
}

std::vector<at::Tensor> AttentionCase::results(bool backward) const {
  if (!backward) return {result_.out_BLHE};
  return {result_.out_BLHE, grads_.dq_BLHD, grads_.dk_BLGD, grads_.dv_BLGE};
}

at::ScalarType kernel_dtype(plan::Dtype dtype) {
  if (dtype == plan::Dtype::F64) {
    fail<InvalidArgument>(
        "bench: dtype fp64; fp32, bf16 or fp16 is required, of which there is a kernel");
  }
  return runtime::scalar_type(dtype);
}

Sample sample(const SampleShape& shape) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const auto random = [&](std::int64_t tokens, std::int64_t heads) {
    return at::randn({1, tokens, heads, shape.head_dim}, generator).to(kernel_dtype(shape.dtype));
  };
  Sample sample;
  // One after the other: arguments of one call would be evaluated in any order, and take other
  // numbers of the generator.
  sample.q_BLHD = random(shape.q_tokens, shape.heads);
  sample.k_BLGD = random(shape.k_tokens, shape.kv_heads);
  sample.v_BLGD = random(shape.k_tokens, shape.kv_heads);
  sample.dout_BLHD = random(shape.q_tokens, shape.heads);
  return sample;
}

std::vector<at::Tensor> exact_first_head(const kernel::Pairs& pairs, const kernel::Inputs& inputs,
                                         const at::Tensor& dout_BLHE, bool backward) {
  const std::int64_t group = inputs.q_BLHD.size(2) / inputs.k_BLGD.size(2);
  // Query heads of one KV head are neighbours: the first of them belong to KV head 0.
  AttentionCase exact(kernel::reference(), pairs,
                      {.q_BLHD = first_heads(inputs.q_BLHD, group),
                       .k_BLGD = first_heads(inputs.k_BLGD, 1),
                       .v_BLGE = first_heads(inputs.v_BLGE, 1),
                       .score = inputs.score},
                      first_heads(dout_BLHE, group));
  exact.forward();
  if (backward) exact.backward();
  return exact.results(backward);
}

double error_of(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& exact) {
  const auto largest = [](const at::Tensor& x) { return x.abs().max().item<double>(); };
  double worst = 0;
  double floor = 0;  // for tensors that are all but zero
  for (const at::Tensor& x : exact) floor = std::max(floor, largest(x) / 16);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const at::Tensor part = first_heads(tensors[i], exact[i].size(2));
    const double error = largest(part - exact[i]) / std::max(largest(exact[i]), floor);
    worst = std::isnan(error) || std::isnan(worst) ? std::nan("") : std::max(worst, error);
  }
  return worst;
}

void require_right(std::string_view what, double error, plan::Dtype dtype) {
  // fp32 rounds to 6e-8 of a value, bf16 to 4e-3; the rest is room for sums.
  const double bound = dtype == plan::Dtype::F32 ? 1e-5 : 0.05;
  if (!(error <= bound)) {  // true for NaN too
    fail<Error>("bench: {} is wrong by {:.3g}, at most {:.0g} is required; nothing was timed", what,
                error, bound);
  }
}

}  // namespace armillary::bench
