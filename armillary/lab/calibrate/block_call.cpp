// block_call.cpp: tensors as the executor has them. One forward call is made at once: backward
// calls need its log-sum-exp.
#include "armillary/lab/calibrate/block_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/runs.h"

namespace armillary::calibrate {

namespace {

plan::Mask mask_of(const BlockShape& shape) {
  return plan::parse_mask(shape.causal ? "causal" : "full", {shape.tokens, shape.tokens});
}

}  // namespace

double flops_of(const BlockShape& shape, plan::Pass pass) {
  // Two products forward, five backward, of 2 D flops for each pair.
  return (pass == plan::Pass::Forward ? 4.0 : 10.0) * shape.head_dim * shape.heads *
         static_cast<double>(mask_of(shape).area());
}

double accumulator_bytes(const BlockShape& shape, plan::Pass pass) {
  constexpr double kBytes = 4;  // fp32
  const double rows = static_cast<double>(shape.tokens) * shape.heads;
  // Forward sums outputs; backward sums dQ, dK and dV.
  const double dims = (pass == plan::Pass::Forward ? 1.0 : 3.0) * shape.head_dim;
  return kBytes * rows * dims;
}

BlockCall::BlockCall(const BlockShape& shape) : mask_(mask_of(shape)) {
  const plan::Runs rows{plan::run_of({0, shape.tokens})};
  pairs_ = {.q_runs = rows, .k_runs = rows, .mask = &mask_};
  pairs_.prepared = kernel::cpu_kernel().prepare(pairs_);
  const bench::Sample random = bench::sample({.dtype = shape.dtype,
                                              .q_tokens = shape.tokens,
                                              .k_tokens = shape.tokens,
                                              .heads = shape.heads,
                                              .kv_heads = shape.heads,
                                              .head_dim = shape.head_dim});
  inputs_ = {.q_BLHD = random.q_BLHD,
             .k_BLGD = random.k_BLGD,
             .v_BLGE = random.v_BLGD,
             .score = {.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim))}};
  // Accumulators, and the log-sum-exp of a finished forward pass.
  const auto acc = at::TensorOptions(kernel::accumulator(random.q_BLHD.scalar_type()));
  const at::IntArrayRef sizes = random.q_BLHD.sizes();
  carry_ = {at::empty(sizes, acc), at::empty(sizes.slice(0, 3), acc)};
  run(plan::Pass::Forward, true);
  upstream_ = {random.dout_BLHD, carry_.lse_BLH.clone(), at::zeros(sizes.slice(0, 3), acc)};
  grads_ = {at::zeros(sizes, acc), at::zeros(sizes, acc), at::zeros(sizes, acc)};
}

void BlockCall::run(plan::Pass pass, bool init) {
  if (pass == plan::Pass::Forward) {
    carry_.init = init;
    return kernel::cpu_kernel().attend(pairs_, inputs_, carry_);
  }
  grads_.dq_init = grads_.dkv_init = init;
  kernel::cpu_kernel().attend_grad(pairs_, inputs_, upstream_, grads_);
}

}  // namespace armillary::calibrate
