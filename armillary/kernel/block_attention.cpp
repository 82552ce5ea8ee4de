// Checks the arguments of every kernel call, and has the parts of attention that are the same for
// all kernels: the default attend_all and attend_grad_all, delta, and the gradient of sinks.
//
// Each public method of Kernel checks, then calls its private virtual method. Error texts begin
// with the name of the method and name the tensor.
#include "armillary/kernel/block_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"

namespace armillary::kernel {
namespace {

/// Every position of the runs lies in [0, length).
void expect_inside(const char* where, const char* name, const plan::Runs& runs,
                   std::int64_t length) {
  for (const plan::Run& run : runs) {
    if (run.begin < 0 || run.last() >= length) {
      fail<InvalidArgument>("{}: {} hold positions {} to {}; the mask has positions 0 to {}", where,
                            name, run.begin, run.last(), length - 1);
    }
  }
}

void check_pairs(const char* where, const Pairs& pairs) {
  if (pairs.mask == nullptr) {
    fail<InvalidArgument>("{}: no mask; one over all positions is required", where);
  }
  expect_inside(where, "q_runs", pairs.q_runs, pairs.mask->q_len());
  expect_inside(where, "k_runs", pairs.k_runs, pairs.mask->kv_len());
}

/// Checks the tensors of one call; errors begin with the name of the call.
class Checker {
 public:
  Checker(const char* where, const at::Tensor& q_BLHD) : where_(where), device_(q_BLHD.device()) {}

  /// `result` has this shape and dtype, and the device of q.
  void expect(const char* name, const at::Tensor& result, at::IntArrayRef shape,
              at::ScalarType dtype) const {
    if (result.sizes() != shape || result.scalar_type() != dtype) {
      fail<InvalidArgument>("{}: {} is {} [{}]; {} [{}] is required", where_, name,
                            c10::toString(result.scalar_type()), fmt::join(result.sizes(), ", "),
                            c10::toString(dtype), fmt::join(shape, ", "));
    }
    if (result.device() != device_) {
      fail<InvalidArgument>("{}: {} is on {}; {} like q_BLHD is required", where_, name,
                            result.device().str(), device_.str());
    }
  }

  void expect_4d(const char* name, const at::Tensor& result) const {
    if (result.dim() != 4) {
      fail<InvalidArgument>("{}: {} has shape [{}]; 4 dims are required", where_, name,
                            fmt::join(result.sizes(), ", "));
    }
  }

  /// The KV heads that the query heads of the view read are in the view.
  void expect_heads(const HeadMap& map, std::int64_t heads, std::int64_t kv_heads) const {
    if (map.group_size < 1 || map.first_q_head < 0 || map.first_kv_head < 0) {
      fail<InvalidArgument>(
          "{}: group_size {}, first_q_head {}, first_kv_head {}; at least 1, 0 and 0 are required",
          where_, map.group_size, map.first_q_head, map.first_kv_head);
    }
    if (heads == 0) {
      return;  // no query head reads any KV head
    }
    const std::int64_t first = map.first_q_head / map.group_size;
    const std::int64_t last = (map.first_q_head + heads - 1) / map.group_size;
    if (first < map.first_kv_head || last >= map.first_kv_head + kv_heads) {
      fail<InvalidArgument>("{}: the view has {} KV heads from {}; its query heads read {} to {}",
                            where_, kv_heads, map.first_kv_head, first, last);
    }
  }

 private:
  const char* where_;
  c10::Device device_;
};

/// Checks pairs, inputs and score, as forward and backward both require. Returns the checker for
/// the other tensors of the call.
Checker checker_of(const char* where, const Pairs& pairs, const Inputs& inputs) {
  const auto& [q, k, v, score] = inputs;
  const Checker checker(where, q);
  checker.expect_4d("q_BLHD", q);
  checker.expect_4d("k_BLGD", k);
  checker.expect_4d("v_BLGE", v);
  // Shapes: q gives batch, heads and D; k gives the KV heads; v gives E; the runs give the tokens.
  const std::int64_t keys = tokens(pairs.k_runs);
  const at::ScalarType dtype = q.scalar_type();
  checker.expect("q_BLHD", q, {q.size(0), tokens(pairs.q_runs), q.size(2), q.size(3)}, dtype);
  checker.expect("k_BLGD", k, {q.size(0), keys, k.size(2), q.size(3)}, dtype);
  checker.expect("v_BLGE", v, {q.size(0), keys, k.size(2), v.size(3)}, dtype);
  check_pairs(where, pairs);
  checker.expect_heads(pairs.heads, q.size(2), k.size(2));
  // Slopes are by global head: there must be one for the last head of the view.
  check_score(where, score, q.size(2) == 0 ? 0 : pairs.heads.first_q_head + q.size(2));
  return checker;
}

/// Checks the results of a call for its queries: out of this dtype, lse and max_logit in the
/// accumulator. `names` are those of the three tensors in error texts.
void expect_rows(const Checker& checker, const std::array<const char*, 3>& names,
                 const Inputs& inputs, at::ScalarType dtype, const AttentionOutput& output) {
  const at::Tensor& q = inputs.q_BLHD;
  const at::ScalarType acc = accumulator(q.scalar_type());
  checker.expect(names[0], output.out_BLHE,
                 {q.size(0), q.size(1), q.size(2), inputs.v_BLGE.size(3)}, dtype);
  checker.expect(names[1], output.lse_BLH, {q.size(0), q.size(1), q.size(2)}, acc);
  if (!output.max_logit_H.defined()) return;
  checker.expect(names[2], output.max_logit_H, {q.size(2)}, acc);
}

/// Checks the upstream tensors and the gradients, which have this dtype.
void expect_grads(const Checker& checker, const Inputs& inputs, const OutputGrads& upstream,
                  at::ScalarType dtype, const InputGrads& grads) {
  const auto& [q, k, v, score] = inputs;
  const at::ScalarType acc = accumulator(q.scalar_type());
  const std::array<std::int64_t, 3> rows = {q.size(0), q.size(1), q.size(2)};
  checker.expect("dout_BLHE", upstream.dout_BLHE, {rows[0], rows[1], rows[2], v.size(3)},
                 q.scalar_type());
  checker.expect("lse_BLH", upstream.lse_BLH, rows, acc);
  checker.expect("delta_BLH", upstream.delta_BLH, rows, acc);
  checker.expect("dq_BLHD", grads.dq_BLHD, q.sizes(), dtype);
  checker.expect("dk_BLGD", grads.dk_BLGD, k.sizes(), dtype);
  checker.expect("dv_BLGE", grads.dv_BLGE, v.sizes(), dtype);
}

/// Refuses calls that the kernel does not compute.
void expect_known(const char* where, const Kernel& kernel, const Inputs& inputs, bool tracks_max) {
  kernel.check(where, {.head_dim = inputs.q_BLHD.size(3),
                       .value_dim = inputs.v_BLGE.size(3),
                       .plain = inputs.score.plain(),
                       .max_logit = tracks_max});
}

}  // namespace

at::ScalarType accumulator(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return at::kDouble;
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
      return at::kFloat;
    default:
      fail<InvalidArgument>("attend: dtype {}; Double, Float, BFloat16 or Half is required",
                            c10::toString(dtype));
  }
}

// KV head g of the view is read by global query heads [g' group_size, (g' + 1) group_size), with g'
// its global number; the view has only some of them.
plan::Interval HeadMap::q_heads_of(std::int64_t kv_head, std::int64_t heads) const {
  const std::int64_t begin = (first_kv_head + kv_head) * group_size - first_q_head;
  return {std::clamp<std::int64_t>(begin, 0, heads),
          std::clamp<std::int64_t>(begin + group_size, 0, heads)};
}

void Kernel::check(const char* where, const CallShape& shape) const {
  if (plain_only() && (!shape.plain || shape.max_logit)) {
    fail<InvalidArgument>(
        "{}: this kernel has no softcap, slopes, dropout or max_logit_H; one that has, such as "
        "reference(), is required",
        where);
  }
  const std::pair<const char*, std::int64_t> dims[] = {{"head", shape.head_dim},
                                                       {"value", shape.value_dim}};
  for (const auto& [name, dim] : dims) {
    if (max_dim() == 0 || (dim >= 1 && dim <= max_dim())) continue;
    fail<InvalidArgument>("{}: {} dim {}; 1 to {} is required", where, name, dim, max_dim());
  }
}

std::shared_ptr<const Prepared> Kernel::prepare(const Pairs& pairs) const {
  check_pairs("prepare", pairs);
  return run_prepare(pairs);
}

void clear_init(Partial& partial) {
  if (std::exchange(partial.init, false)) clear(partial);
}

void clear_init(InputGrads& grads) {
  if (std::exchange(grads.dq_init, false)) grads.dq_BLHD.zero_();
  if (std::exchange(grads.dkv_init, false)) {
    grads.dk_BLGD.zero_();
    grads.dv_BLGE.zero_();
  }
}

// Public calls: check, run.

void Kernel::attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const {
  const Checker checker = checker_of("attend", pairs, inputs);
  expect_rows(checker, {"carry.out_BLHE", "carry.lse_BLH", "carry.max_logit_H"}, inputs,
              accumulator(inputs.q_BLHD.scalar_type()),
              {carry.out_BLHE, carry.lse_BLH, carry.max_logit_H});
  expect_known("attend", *this, inputs, carry.max_logit_H.defined());
  run_attend(pairs, inputs, carry);
  carry.init = false;
}

void Kernel::attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                        AttentionOutput& result) const {
  const Checker checker = checker_of("attend", pairs, inputs);
  const at::Tensor& q = inputs.q_BLHD;
  expect_rows(checker, {"result.out_BLHE", "result.lse_BLH", "result.max_logit_H"}, inputs,
              q.scalar_type(), result);
  if (sinks_H.defined()) {
    checker.expect("sinks_H", sinks_H, {q.size(2)}, accumulator(q.scalar_type()));
  }
  expect_known("attend", *this, inputs, result.max_logit_H.defined());
  run_attend_all(pairs, inputs, sinks_H, result);
}

// The default of attend_all: a partial over all keys, then finish.
void Kernel::run_attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                            AttentionOutput& result) const {
  const c10::NoGradGuard no_grad;
  const at::ScalarType acc = accumulator(inputs.q_BLHD.scalar_type());
  // The partial may use the memory of the result, unless the result is rounded.
  const bool rounds = result.out_BLHE.scalar_type() != acc;
  Partial carry{rounds ? at::empty_like(result.out_BLHE, acc) : result.out_BLHE, result.lse_BLH,
                result.max_logit_H, /*init=*/true};
  run_attend(pairs, inputs, carry);
  finish(carry, result.out_BLHE, result.lse_BLH, sinks_H);
}

void Kernel::attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                         InputGrads& grads) const {
  const Checker checker = checker_of("attend_grad", pairs, inputs);
  expect_known("attend_grad", *this, inputs, false);
  expect_grads(checker, inputs, upstream, accumulator(inputs.q_BLHD.scalar_type()), grads);
  run_attend_grad(pairs, inputs, upstream, grads);
  grads.dq_init = grads.dkv_init = false;
}

void Kernel::attend_grad_all(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                             InputGrads& grads) const {
  const Checker checker = checker_of("attend_grad", pairs, inputs);
  expect_known("attend_grad", *this, inputs, false);
  expect_grads(checker, inputs, upstream, inputs.q_BLHD.scalar_type(), grads);
  run_attend_grad_all(pairs, inputs, upstream, grads);
}

// The default of attend_grad_all: gradients in temporary accumulators, then one rounding.
void Kernel::run_attend_grad_all(const Pairs& pairs, const Inputs& inputs,
                                 const OutputGrads& upstream, InputGrads& grads) const {
  const c10::NoGradGuard no_grad;
  const auto acc = accumulator(inputs.q_BLHD.scalar_type());
  InputGrads sums{at::empty_like(grads.dq_BLHD, acc), at::empty_like(grads.dk_BLGD, acc),
                  at::empty_like(grads.dv_BLGE, acc), /*dq_init=*/true, /*dkv_init=*/true};
  run_attend_grad(pairs, inputs, upstream, sums);
  grads.dq_BLHD.copy_(sums.dq_BLHD);
  grads.dk_BLGD.copy_(sums.dk_BLGD);
  grads.dv_BLGE.copy_(sums.dv_BLGE);
}

void delta(const at::Tensor& dout_BLHE, const at::Tensor& out_BLHE, at::Tensor& delta_BLH) {
  const c10::NoGradGuard no_grad;
  if (dout_BLHE.sizes() != out_BLHE.sizes() || dout_BLHE.scalar_type() != out_BLHE.scalar_type() ||
      dout_BLHE.dim() != delta_BLH.dim() + 1 ||
      delta_BLH.sizes() != dout_BLHE.sizes().slice(0, delta_BLH.dim())) {
    fail<InvalidArgument>(
        "delta: dout [{}], out [{}], delta [{}]; one shape and dtype, delta without its last dim, "
        "is required",
        fmt::join(dout_BLHE.sizes(), ", "), fmt::join(out_BLHE.sizes(), ", "),
        fmt::join(delta_BLH.sizes(), ", "));
  }
  // One pass of the CPU kernel's row op if it takes the tensors, else by ATen.
  if (suits_row_ops(dout_BLHE) && suits_row_ops(out_BLHE) &&
      delta_BLH.scalar_type() == at::kFloat) {
    cpu::delta(cpu::current_isa(), intra_op_team(2.0 * static_cast<double>(out_BLHE.numel())),
               {.shape = shape_of(out_BLHE),
                .dout = input_of(dout_BLHE),
                .out = input_of(out_BLHE),
                .element = element_of(out_BLHE.scalar_type()),
                .delta = output_of(delta_BLH)});
    return;
  }
  // Products and sums are in the accumulator dtype, which is that of delta.
  const at::ScalarType acc = delta_BLH.scalar_type();
  delta_BLH.copy_((dout_BLHE.to(acc) * out_BLHE.to(acc)).sum(-1));
}

void sinks_grad(const at::Tensor& sinks_H, const at::Tensor& lse_BLH, const at::Tensor& delta_BLH,
                at::Tensor& dsinks_H) {
  const c10::NoGradGuard no_grad;
  if (lse_BLH.dim() != 3 || delta_BLH.sizes() != lse_BLH.sizes() ||
      sinks_H.sizes() != lse_BLH.sizes().slice(2) || dsinks_H.sizes() != sinks_H.sizes()) {
    fail<InvalidArgument>(
        "sinks_grad: sinks [{}], lse [{}], delta [{}], dsinks [{}]; [H], [B, L, H] twice and [H] "
        "are required",
        fmt::join(sinks_H.sizes(), ", "), fmt::join(lse_BLH.sizes(), ", "),
        fmt::join(delta_BLH.sizes(), ", "), fmt::join(dsinks_H.sizes(), ", "));
  }
  // A row that saw neither a key nor a sink above -inf adds 0, but -inf - -inf is NaN.
  const at::Tensor lse = lse_BLH.to(at::kDouble);
  const at::Tensor terms = (sinks_H.to(at::kDouble) - lse).exp_().mul_(delta_BLH);
  dsinks_H.sub_(terms.masked_fill_(lse == -std::numeric_limits<double>::infinity(), 0)
                    .sum(at::IntArrayRef{0, 1}));
}

}  // namespace armillary::kernel
