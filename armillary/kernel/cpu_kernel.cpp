#include "armillary/kernel/cpu_kernel.h"

#include <ATen/ATen.h>
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
#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"
#include "armillary/kernel/reference.h"

namespace armillary::kernel {
namespace {

/// Schedules for either pass and way to multiply, each made when it is first asked for: a plan's op
/// runs one pass only, and all its calls have one dtype.
class Schedules final : public Prepared {
 public:
  Schedules(const cpu::Tiles& isa, const Pairs& pairs)
      : isa_(isa), mask_(*pairs.mask), q_runs_(pairs.q_runs), k_runs_(pairs.k_runs) {}

  const cpu::Schedule& forward(const cpu::Products& products) const {
    return forward_[number(products)].get(*this, cpu::forward_limits(products));
  }
  const cpu::Schedule& backward(const cpu::Products& products) const {
    return backward_[number(products)].get(*this, cpu::backward_limits(products));
  }

 private:
  struct Lazy {
    const cpu::Schedule& get(const Schedules& all, PatchLimits limits) {
      std::call_once(once, [&] {
        schedule = cpu::make_schedule(all.mask_, all.q_runs_, all.k_runs_, limits);
      });
      return schedule;
    }
    std::once_flag once;
    cpu::Schedule schedule;
  };
  std::size_t number(const cpu::Products& products) const { return &products == &isa_.pairs; }

  const cpu::Tiles& isa_;
  const plan::Mask& mask_;
  plan::Runs q_runs_;
  plan::Runs k_runs_;
  mutable std::array<Lazy, 2> forward_;
  mutable std::array<Lazy, 2> backward_;
};

void check_dim(const char* where, const char* what, std::int64_t dim) {
  if (dim < 1 || dim > cpu::kMaxDim) {
    fail<InvalidArgument>("{}: {} dim {}; 1 to {} is required", where, what, dim, cpu::kMaxDim);
  }
}

/// Whether two elements may share their memory: dims, by stride, must not reach into each other.
bool overlaps(const at::Tensor& x) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 4> dims;  // a call allocates nothing
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

/// A tensor that a call updates; one whose elements are not neighbours is updated as a copy.
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

/// An fp32 tensor of one dim, or an undefined one; copied if elements are not neighbours.
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

cpu::Upstream upstream_of(const at::Tensor& dout_BLHE, const OutputGrads& upstream) {
  return {.dout = input_of(dout_BLHE),
          .lse = output_of(upstream.lse_BLH),
          .delta = output_of(upstream.delta_BLH)};
}

/// Keeps the rows that a call reads alive.
struct Readable {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor slopes_H;
};

at::Tensor readable(const at::Tensor& x) {
  return has_rows(x) ? x : x.contiguous();
}

Readable readable(const Inputs& inputs) {
  Readable rows{readable(inputs.q_BLHD), readable(inputs.k_BLGD), readable(inputs.v_BLGE), {}};
  if (inputs.score.alibi_slopes_H.defined())
    rows.slopes_H = inputs.score.alibi_slopes_H.contiguous();
  return rows;
}

/// As if every pair were visible.
double flops_at_most(const Readable& rows) {
  const auto pairs = static_cast<double>(rows.q.size(0) * rows.q.size(1) * rows.q.size(2)) *
                     static_cast<double>(rows.k.size(1));
  return 2 * pairs * static_cast<double>(rows.q.size(3) + rows.v.size(3));
}

/// A call without its schedule.
cpu::Call call_of(const cpu::Tiles& isa, const HeadMap& heads, const Readable& rows,
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

class CpuKernel final : public Kernel {
 public:
  explicit CpuKernel(const cpu::Tiles& isa) : isa_(isa) {}
  bool plain_only() const override { return false; }

 private:
  std::shared_ptr<const Prepared> run_prepare(const Pairs& pairs) const override {
    return std::make_shared<Schedules>(isa_, pairs);
  }

  /// What `pairs` brings, or what is made for this call.
  std::shared_ptr<const Schedules> schedules(const Pairs& pairs) const {
    auto given = std::dynamic_pointer_cast<const Schedules>(pairs.prepared);
    return given ? given : std::make_shared<const Schedules>(isa_, pairs);
  }

  void check(const char* where, const Inputs& inputs) const {
    if (!inputs.q_BLHD.is_cpu()) {
      fail<InvalidArgument>("{}: q_BLHD is on {}; the kernel of CPUs requires cpu", where,
                            inputs.q_BLHD.device().str());
    }
    check_dim(where, "head", inputs.q_BLHD.size(3));
    check_dim(where, "value", inputs.v_BLGE.size(3));
  }

  void run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const override {
    check("attend", inputs);
    check_output("attend", "carry.out_BLHE", carry.out_BLHE);
    check_output("attend", "carry.lse_BLH", carry.lse_BLH);
    if (inputs.q_BLHD.scalar_type() == at::kDouble) {
      return reference().attend(pairs, inputs, carry);
    }
    const c10::NoGradGuard no_grad;
    const auto prepared = schedules(pairs);
    const Readable rows = readable(inputs);
    cpu::Call call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.schedule = &prepared->forward(cpu::forward_products(call));
    if (call.schedule->pairs.empty()) return clear_fresh(carry);
    const Updated out(carry.out_BLHE);
    const Raised max_logit(carry.max_logit_H);
    cpu::attend(call, {.out = out.output(),
                       .lse = output_of(carry.lse_BLH),
                       .max_logit_H = max_logit.data(),
                       .fresh = carry.fresh});
    out.write_back();
  }

  void run_attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                       InputGrads& grads) const override {
    check("attend_grad", inputs);
    check_grads("attend_grad", grads);
    if (inputs.q_BLHD.scalar_type() == at::kDouble) {
      return reference().attend_grad(pairs, inputs, upstream, grads);
    }
    const c10::NoGradGuard no_grad;
    const auto prepared = schedules(pairs);
    const Readable rows = readable(inputs);
    cpu::Call call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.schedule = &prepared->backward(cpu::backward_products(call));
    if (call.schedule->pairs.empty()) return clear_fresh(grads);
    const at::Tensor dout = readable(upstream.dout_BLHE);
    const Updated dq(grads.dq_BLHD);
    const Updated dk(grads.dk_BLGD);
    const Updated dv(grads.dv_BLGE);
    cpu::attend_grad(call, upstream_of(dout, upstream),
                     {.dq = dq.output(),
                      .dk = dk.output(),
                      .dv = dv.output(),
                      .dq_fresh = grads.dq_fresh,
                      .dkv_fresh = grads.dkv_fresh});
    dq.write_back();
    dk.write_back();
    dv.write_back();
  }

  void run_attend_all(const Pairs& pairs, const Inputs& inputs, const at::Tensor& sinks_H,
                      Result& result) const override {
    check("attend", inputs);
    check_output("attend", "result.out_BLHE", result.out_BLHE);
    check_output("attend", "result.lse_BLH", result.lse_BLH);
    if (inputs.q_BLHD.scalar_type() == at::kDouble || !has_rows(result.out_BLHE)) {
      return Kernel::run_attend_all(pairs, inputs, sinks_H, result);
    }
    const c10::NoGradGuard no_grad;
    const auto prepared = schedules(pairs);
    const Readable rows = readable(inputs);
    cpu::Call call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.schedule = &prepared->forward(cpu::forward_products(call));
    if (call.schedule->pairs.empty()) {
      return Kernel::run_attend_all(pairs, inputs, sinks_H, result);
    }
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
    check("attend_grad", inputs);
    check_grads("attend_grad", grads);
    const bool by_rows =
        has_rows(grads.dq_BLHD) && has_rows(grads.dk_BLGD) && has_rows(grads.dv_BLGE);
    if (inputs.q_BLHD.scalar_type() == at::kDouble || !by_rows) {
      return Kernel::run_attend_grad_all(pairs, inputs, upstream, grads);
    }
    const c10::NoGradGuard no_grad;
    const auto prepared = schedules(pairs);
    const Readable rows = readable(inputs);
    cpu::Call call = call_of(isa_, pairs.heads, rows, inputs.score);
    call.schedule = &prepared->backward(cpu::backward_products(call));
    if (call.schedule->pairs.empty()) {
      return Kernel::run_attend_grad_all(pairs, inputs, upstream, grads);
    }
    const at::Tensor dout = readable(upstream.dout_BLHE);
    cpu::attend_grad_all(call, upstream_of(dout, upstream),
                         {.dq = result_of(grads.dq_BLHD),
                          .dk = result_of(grads.dk_BLGD),
                          .dv = result_of(grads.dv_BLGE)});
  }

  const cpu::Tiles& isa_;
};

}  // namespace

const Kernel& cpu_kernel() {
  return cpu_kernel(cpu::current_isa().name);
}

const Kernel& cpu_kernel(std::string_view isa) {
  static const std::vector<CpuKernel> kernels = [] {
    std::vector<CpuKernel> all;
    for (const cpu::Tiles* tiles : cpu::all_isas()) all.emplace_back(*tiles);
    return all;
  }();
  const cpu::Tiles& wanted = cpu::isa_named(isa);
  const auto isas = cpu::all_isas();
  return kernels[static_cast<std::size_t>(std::find(isas.begin(), isas.end(), &wanted) -
                                          isas.begin())];
}

}  // namespace armillary::kernel
