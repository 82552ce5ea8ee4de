// Adapts the CPU kernel (cpu/), which takes pointers and strides, to the interface of every kernel.
//
// A call: (1) check what this kernel requires beyond block_attention.cpp; (2) hand fp64 to the
// reference; (3) make rows contiguous; (4) take the block mask for the GEMM functions of this call;
// (5) run; (6) copy back results whose rows are not contiguous.
#include "armillary/kernel/cpu_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/attention_args.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"
#include "armillary/kernel/reference.h"

namespace armillary::kernel {
namespace {

/// Block masks of some pairs: one for each pass and each of the two sets of GEMM functions. Each is
/// made on first use, because an op of a plan runs one pass, and all its calls have one dtype.
/// Threads: any.
class BlockMasks final : public Prepared {
 public:
  BlockMasks(const cpu::IsaKernels& isa, const Pairs& pairs)
      : isa_(isa), mask_(*pairs.mask), q_runs_(pairs.q_runs), k_runs_(pairs.k_runs) {}

  const cpu::BlockMask& forward(const cpu::GemmOps& gemm) const {
    return forward_[number(gemm)].get(*this, cpu::forward_limits(gemm));
  }
  const cpu::BlockMask& backward(const cpu::GemmOps& gemm) const {
    return backward_[number(gemm)].get(*this, cpu::backward_limits(gemm));
  }

 private:
  /// A block mask that is made on first use.
  struct Lazy {
    const cpu::BlockMask& get(const BlockMasks& all, MaskTileLimits limits) {
      std::call_once(once, [&] {
        block_mask = cpu::make_block_mask(all.mask_, all.q_runs_, all.k_runs_, limits);
      });
      return block_mask;
    }
    std::once_flag once;
    cpu::BlockMask block_mask;
  };
  std::size_t number(const cpu::GemmOps& gemm) const { return &gemm == &isa_.bf16_dot; }

  const cpu::IsaKernels& isa_;
  const plan::Mask& mask_;
  plan::Runs q_runs_;
  plan::Runs k_runs_;
  mutable std::array<Lazy, 2> forward_;
  mutable std::array<Lazy, 2> backward_;
};

/// Whether two elements of `x` may share memory. Dims are taken by ascending stride: each stride
/// must exceed the largest offset that the dims before it reach. May also be true for unusual
/// tensors without overlap.
bool overlaps(const at::Tensor& x) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 4> dims;  // allocates nothing
  for (std::int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) == 0) return false;
    if (x.size(i) > 1) dims.emplace_back(x.stride(i), x.size(i));
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

void check_output(const char* where, const char* name, const at::Tensor& x) {
  if (overlaps(x)) {
    fail<InvalidArgument>(
        "{}: {} has shape [{}] and strides [{}]; elements that do not share memory are required",
        where, name, fmt::join(x.sizes(), ", "), fmt::join(x.strides(), ", "));
  }
}

void check_grads(const char* where, const InputGrads& grads) {
  check_output(where, "dq_BLHD", grads.dq_BLHD);
  check_output(where, "dk_BLGD", grads.dk_BLGD);
  check_output(where, "dv_BLGE", grads.dv_BLGE);
}

/// A tensor that a call updates. If its rows are not contiguous, the call updates a copy, which
/// write_back() copies back.
class Updated {
 public:
  explicit Updated(const at::Tensor& x) : x_(x), rows_(has_rows(x) ? x : x.contiguous()) {}
  cpu::Output output() const { return output_of(rows_); }
  void write_back() const {
    if (!rows_.is_same(x_)) x_.copy_(rows_);
  }

 private:
  const at::Tensor& x_;
  at::Tensor rows_;
};

/// A one-dimensional fp32 tensor that a call updates, or an undefined one. If it is not contiguous,
/// the call updates a copy, which the destructor copies back.
class Raised {
 public:
  explicit Raised(const at::Tensor& x_H) : x_H_(x_H) {
    if (x_H.defined()) rows_H_ = x_H.contiguous();
  }
  ~Raised() {
    if (x_H_.defined() && !rows_H_.is_same(x_H_)) x_H_.copy_(rows_H_);
  }
  float* data() const { return x_H_.defined() ? rows_H_.mutable_data_ptr<float>() : nullptr; }

 private:
  const at::Tensor& x_H_;
  at::Tensor rows_H_;
};

cpu::RowUpstream upstream_of(const at::Tensor& dout_BLHE, const OutputGrads& upstream) {
  return {.dout = input_of(dout_BLHE),
          .lse = output_of(upstream.lse_BLH),
          .delta = output_of(upstream.delta_BLH)};
}

/// Inputs of a call with contiguous rows. Owns the copies, so it must live as long as the call.
struct Readable {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor slopes_H;
};

/// The tensor, or a copy if its rows are not contiguous.
at::Tensor readable(const at::Tensor& x) {
  return has_rows(x) ? x : x.contiguous();
}

Readable readable(const Inputs& inputs) {
  Readable rows{readable(inputs.q_BLHD), readable(inputs.k_BLGD), readable(inputs.v_BLGE), {}};
  if (inputs.score.alibi_slopes_H.defined())
    rows.slopes_H = inputs.score.alibi_slopes_H.contiguous();
  return rows;
}

/// Work of the call if every pair were visible; the number of threads depends on it.
double flops_at_most(const Readable& rows) {
  const auto pairs = static_cast<double>(rows.q.size(0) * rows.q.size(1) * rows.q.size(2)) *
                     static_cast<double>(rows.k.size(1));
  return 2 * pairs * static_cast<double>(rows.q.size(3) + rows.v.size(3));
}

/// Arguments of a call, except the block mask.
cpu::AttentionArgs call_of(const cpu::IsaKernels& isa, const HeadMap& heads, const Readable& rows,
                           const Score& score) {
  return {.isa = &isa,
          .team = intra_op_team(flops_at_most(rows)),
          .element = element_of(rows.q.scalar_type()),
          .batch = rows.q.size(0),
          .heads = rows.q.size(2),
          .kv_heads = rows.k.size(2),
          .head_dim = static_cast<int>(rows.q.size(3)),
          .value_dim = static_cast<int>(rows.v.size(3)),
          .first_q_head = heads.first_q_head,
          .first_kv_head = heads.first_kv_head,
          .group_size = heads.group_size,
          .scale = score.scale,
          .softcap = score.softcap.value_or(0),
          .slopes_H = rows.slopes_H.defined() ? rows.slopes_H.const_data_ptr<float>() : nullptr,
          .dropout = score.dropout,
          .q = input_of(rows.q),
          .k = input_of(rows.k),
          .v = input_of(rows.v)};
}

/// The kernel of one instruction set. The four run_ methods have the same phases.
class IsaKernel final : public Kernel {
 public:
  explicit IsaKernel(const cpu::IsaKernels& isa) : isa_(isa) {}
  bool plain_only() const override { return false; }

 private:
  std::shared_ptr<const Prepared> run_prepare(const Pairs& pairs) const override {
    return std::make_shared<BlockMasks>(isa_, pairs);
  }

  /// Block masks that prepare() made, or new ones for this call.
  std::shared_ptr<const BlockMasks> block_masks(const Pairs& pairs) const {
    auto value = std::dynamic_pointer_cast<const BlockMasks>(pairs.prepared);
    return value ? value : std::make_shared<const BlockMasks>(isa_, pairs);
  }

  std::int64_t max_dim() const override { return cpu::kMaxDim; }

  void check_on_cpu(const char* where, const Inputs& inputs) const {
    if (inputs.q_BLHD.is_cpu()) return;
    fail<InvalidArgument>("{}: q_BLHD is on {}; the kernel of CPUs requires cpu", where,
                          inputs.q_BLHD.device().str());
  }

  void run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const override {
    check_on_cpu("attend", inputs);
    check_output("attend", "carry.out_BLHE", carry.out_BLHE);
    check_output("attend", "carry.lse_BLH", carry.lse_BLH);
    if (inputs.q_BLHD.scalar_type() == at::kDouble) {
      return reference().attend(pairs, inputs, carry);
    }
    // Arguments. Without a visible pair there is nothing to merge.
    const c10::NoGradGuard no_grad;
    const auto prepared = block_masks(pairs);
    const Readable rows = readable(inputs);
    cpu::AttentionArgs call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.block_mask = &prepared->forward(cpu::forward_gemm_ops(call));
    if (call.block_mask->pairs.empty()) return clear_init(carry);
    // The call, and results back into tensors without contiguous rows.
    const Updated out(carry.out_BLHE);
    const Raised max_logit(carry.max_logit_H);
    cpu::attend(call, {.out = out.output(),
                       .lse = output_of(carry.lse_BLH),
                       .max_logit_H = max_logit.data(),
                       .init = carry.init});
    out.write_back();
  }

  void run_attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                       InputGrads& grads) const override {
    check_on_cpu("attend_grad", inputs);
    check_grads("attend_grad", grads);
    if (inputs.q_BLHD.scalar_type() == at::kDouble) {
      return reference().attend_grad(pairs, inputs, upstream, grads);
    }
    // Arguments.
    const c10::NoGradGuard no_grad;
    const auto prepared = block_masks(pairs);
    const Readable rows = readable(inputs);
    cpu::AttentionArgs call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.block_mask = &prepared->backward(cpu::backward_gemm_ops(call));
    if (call.block_mask->pairs.empty()) return clear_init(grads);
    // The call.
    const at::Tensor dout = readable(upstream.dout_BLHE);
    const Updated dq(grads.dq_BLHD);
    const Updated dk(grads.dk_BLGD);
    const Updated dv(grads.dv_BLGE);
    cpu::attend_grad(call, upstream_of(dout, upstream),
                     {.dq = dq.output(),
                      .dk = dk.output(),
                      .dv = dv.output(),
                      .dq_init = grads.dq_init,
                      .dkv_init = grads.dkv_init});
    dq.write_back();
    dk.write_back();
    dv.write_back();
  }

  void run_attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                      AttentionOutput& result) const override {
    check_on_cpu("attend", inputs);
    check_output("attend", "result.out_BLHE", result.out_BLHE);
    check_output("attend", "result.lse_BLH", result.lse_BLH);
    // Other results go through run_attend and finish, which take any strides.
    if (inputs.q_BLHD.scalar_type() == at::kDouble || !has_rows(result.out_BLHE)) {
      return Kernel::run_attend_all(pairs, inputs, sinks_H, result);
    }
    const c10::NoGradGuard no_grad;
    const auto prepared = block_masks(pairs);
    const Readable rows = readable(inputs);
    cpu::AttentionArgs call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.block_mask = &prepared->forward(cpu::forward_gemm_ops(call));
    if (call.block_mask->pairs.empty()) {
      return Kernel::run_attend_all(pairs, inputs, sinks_H, result);
    }
    // The call.
    at::Tensor sinks;
    if (sinks_H.defined()) sinks = sinks_H.contiguous();
    const Raised max_logit(result.max_logit_H);
    cpu::attend_all(call, {.out = result_of(result.out_BLHE),
                           .lse = output_of(result.lse_BLH),
                           .sinks_H = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr,
                           .max_logit_H = max_logit.data()});
  }

  void run_attend_grad_all(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                           InputGrads& grads) const override {
    check_on_cpu("attend_grad", inputs);
    check_grads("attend_grad", grads);
    // Other gradients go through run_attend_grad, which takes any strides.
    const bool by_rows =
        has_rows(grads.dq_BLHD) && has_rows(grads.dk_BLGD) && has_rows(grads.dv_BLGE);
    if (inputs.q_BLHD.scalar_type() == at::kDouble || !by_rows) {
      return Kernel::run_attend_grad_all(pairs, inputs, upstream, grads);
    }
    const c10::NoGradGuard no_grad;
    const auto prepared = block_masks(pairs);
    const Readable rows = readable(inputs);
    cpu::AttentionArgs call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.block_mask = &prepared->backward(cpu::backward_gemm_ops(call));
    if (call.block_mask->pairs.empty()) {
      return Kernel::run_attend_grad_all(pairs, inputs, upstream, grads);
    }
    // The call.
    const at::Tensor dout = readable(upstream.dout_BLHE);
    cpu::attend_grad_all(call, upstream_of(dout, upstream),
                         {.dq = result_of(grads.dq_BLHD),
                          .dk = result_of(grads.dk_BLGD),
                          .dv = result_of(grads.dv_BLGE)});
  }

  const cpu::IsaKernels& isa_;
};

}  // namespace

const Kernel& cpu_kernel() {
  // Looked up once: every call of attention asks for it.
  static const Kernel& kernel = cpu_kernel(cpu::current_isa().name);
  return kernel;
}

const Kernel& cpu_kernel(std::string_view isa) {
  // kernels[i] belongs to all_isas()[i].
  static const std::vector<IsaKernel> kernels = [] {
    std::vector<IsaKernel> all;
    for (const cpu::IsaKernels* set : cpu::all_isas()) all.emplace_back(*set);
    return all;
  }();
  const cpu::IsaKernels& isa_kernels = cpu::isa_named(isa);
  const auto isas = cpu::all_isas();
  return kernels[static_cast<std::size_t>(std::find(isas.begin(), isas.end(), &isa_kernels) -
                                          isas.begin())];
}

}  // namespace armillary::kernel
