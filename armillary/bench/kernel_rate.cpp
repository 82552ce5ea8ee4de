#include "armillary/bench/kernel_rate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include "armillary/bench/peak.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/reference.h"
#include "armillary/plan/layout.h"

namespace armillary::bench {
namespace {

/// One attention over one block, forward and backward, with any kernel.
class Block {
 public:
  Block(const kernel::Kernel& kernel, const kernel::Pairs& pairs, kernel::Inputs inputs,
        at::Tensor dout_BLHE)
      : kernel_(kernel), pairs_(pairs), inputs_(std::move(inputs)), dout_(std::move(dout_BLHE)) {
    pairs_.prepared = kernel.prepare(pairs_);
    const auto acc = at::TensorOptions(kernel::accumulator(dout_.scalar_type()));
    carry_ = {at::empty(dout_.sizes(), acc), at::empty(dout_.sizes().slice(0, 3), acc)};
    out_ = at::empty_like(dout_);
    lse_ = at::empty_like(carry_.lse_BLH);
    delta_ = at::empty_like(lse_);
    sums_ = {at::empty(inputs_.q_BLHD.sizes(), acc), at::empty(inputs_.k_BLGD.sizes(), acc),
             at::empty(inputs_.v_BLGE.sizes(), acc)};
    grads_ = {at::empty_like(inputs_.q_BLHD), at::empty_like(inputs_.k_BLGD),
              at::empty_like(inputs_.v_BLGE)};
  }

  void forward() {
    kernel::clear(carry_);
    kernel_.attend(pairs_, inputs_, carry_);
    kernel::finish(carry_, out_, lse_);
  }

  void backward() {
    for (const at::Tensor& sum : {sums_.dq_BLHD, sums_.dk_BLGD, sums_.dv_BLGE}) sum.zero_();
    kernel::delta(dout_, out_, delta_);
    kernel_.attend_grad(pairs_, inputs_, {dout_, lse_, delta_}, sums_);
    grads_[0].copy_(sums_.dq_BLHD);
    grads_[1].copy_(sums_.dk_BLGD);
    grads_[2].copy_(sums_.dv_BLGE);
  }

  std::vector<at::Tensor> results(plan::Pass pass) const {
    return pass == plan::Pass::Forward ? std::vector<at::Tensor>{out_} : grads_;
  }

 private:
  const kernel::Kernel& kernel_;
  kernel::Pairs pairs_;
  kernel::Inputs inputs_;
  at::Tensor dout_, out_, lse_, delta_;
  kernel::Partial carry_;
  kernel::InputGrads sums_;
  std::vector<at::Tensor> grads_;
};

/// The same block by PyTorch's flash kernel for CPUs, which wants [B, H, L, D].
class Sdpa {
 public:
  Sdpa(const kernel::Inputs& inputs, const at::Tensor& dout_BLHE, bool causal)
      : causal_(causal), scale_(inputs.score.scale), dout_(by_heads(dout_BLHE)) {
    const std::int64_t group = inputs.q_BLHD.size(2) / inputs.k_BLGD.size(2);
    q_ = by_heads(inputs.q_BLHD);
    k_ = by_heads(inputs.k_BLGD.repeat_interleave(group, 2));
    v_ = by_heads(inputs.v_BLGE.repeat_interleave(group, 2));
  }
  void forward() {
    std::tie(out_, lse_) = at::_scaled_dot_product_flash_attention_for_cpu(q_, k_, v_, 0.0, causal_,
                                                                           std::nullopt, scale_);
  }
  void backward() {
    grads_ = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout_, q_, k_, v_, out_, lse_, 0.0, causal_, std::nullopt, scale_);
  }

 private:
  static at::Tensor by_heads(const at::Tensor& x_BLHX) {
    return x_BLHX.transpose(1, 2).contiguous();
  }
  bool causal_;
  double scale_;
  at::Tensor q_, k_, v_, dout_, out_, lse_;
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grads_;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

at::Tensor first_kv_head(const at::Tensor& x_BLHX, std::int64_t heads_of_it) {
  return x_BLHX.narrow(2, 0, heads_of_it).to(at::kDouble);
}

/// What a result may be off by and still be timed: coarse, for the tests are where accuracy is
/// held.
double tolerance(plan::Dtype dtype) {
  return dtype == plan::Dtype::F32 ? 1e-5 : 0.05;
}

at::ScalarType scalar_type(plan::Dtype dtype) {
  switch (dtype) {
    case plan::Dtype::F32:
      return at::kFloat;
    case plan::Dtype::Bf16:
      return at::kBFloat16;
    case plan::Dtype::F16:
      return at::kHalf;
    case plan::Dtype::F64:
      break;
  }
  fail<InvalidArgument>(
      "bench: dtype fp64; fp32, bf16 or fp16 is required, of which there is a kernel");
}

void check(const KernelCase& given) {
  if (given.tokens < 1 || given.world < 1 || given.heads < 1 || given.kv_heads < 1 ||
      given.heads % given.kv_heads != 0) {
    fail<InvalidArgument>(
        "bench: {} tokens, world {}, {} heads, {} KV heads; at least 1 each, heads a multiple of "
        "KV heads, are required",
        given.tokens, given.world, given.heads, given.kv_heads);
  }
  if (given.threads < 1) {
    fail<InvalidArgument>("bench: {} threads; at least 1 is required", given.threads);
  }
}

/// The pairs of a case, and random tensors for them.
struct Work {
  explicit Work(const KernelCase& given)
      : mask(plan::parse_mask(given.mask,
                              {given.tokens * given.world, given.tokens * given.world})) {
    const plan::Shards shards = plan::shards(plan::parse_layout(given.layout), mask, given.world);
    pairs = {.q_runs = shards.q[0],
             .k_runs = shards.kv[0],
             .mask = &mask,
             .heads = {.group_size = given.heads / given.kv_heads}};
    at::Generator generator = at::detail::createCPUGenerator(7);
    const at::ScalarType dtype = scalar_type(given.dtype);
    const auto random = [&](std::int64_t rows, std::int64_t heads) {
      return at::randn({1, rows, heads, given.head_dim}, generator).to(dtype);
    };
    const std::int64_t q_rows = plan::tokens(pairs.q_runs);
    const std::int64_t k_rows = plan::tokens(pairs.k_runs);
    inputs = {.q_BLHD = random(q_rows, given.heads),
              .k_BLGD = random(k_rows, given.kv_heads),
              .v_BLGE = random(k_rows, given.kv_heads),
              .score = {.scale = 1 / std::sqrt(static_cast<double>(given.head_dim))}};
    dout_BLHE = random(q_rows, given.heads);
  }
  Work(const Work&) = delete;  // pairs point to the mask
  Work& operator=(const Work&) = delete;

  plan::Mask mask;
  kernel::Pairs pairs;
  kernel::Inputs inputs;
  at::Tensor dout_BLHE;
};

/// Largest error of the first KV head's group, against the reference in fp64.
double error_of(const Block& ours, plan::Pass pass, const Work& work) {
  const kernel::Inputs& inputs = work.inputs;
  const std::int64_t group = inputs.q_BLHD.size(2) / inputs.k_BLGD.size(2);
  Block exact(kernel::reference(), work.pairs,
              {.q_BLHD = first_kv_head(inputs.q_BLHD, group),
               .k_BLGD = first_kv_head(inputs.k_BLGD, 1),
               .v_BLGE = first_kv_head(inputs.v_BLGE, 1),
               .score = inputs.score},
              first_kv_head(work.dout_BLHE, group));
  exact.forward();
  if (pass == plan::Pass::Backward) exact.backward();
  const std::vector<at::Tensor> required = exact.results(pass);
  const std::vector<at::Tensor> given = ours.results(pass);
  double worst = 0;
  for (std::size_t i = 0; i < required.size(); ++i) {
    const at::Tensor part = first_kv_head(given[i], required[i].size(2));
    const double error = (part - required[i]).abs().max().item<double>();
    worst = std::max(worst, error / required[i].abs().max().item<double>());
    if (std::isnan(error)) worst = error;
  }
  return worst;
}

}  // namespace

KernelRate measure_kernel(const KernelCase& given, double seconds, bool with_sdpa) {
  const c10::NoGradGuard no_grad;
  check(given);
  const std::string isa(kernel::cpu::current_isa().name);
  const Work work(given);
  at::set_num_threads(given.threads);
  const bool forward = given.pass == plan::Pass::Forward;
  const auto run = [&](auto& attention) { forward ? attention.forward() : attention.backward(); };
  Block ours(kernel::cpu_kernel(), work.pairs, work.inputs, work.dout_BLHE);
  ours.forward();
  if (!forward) ours.backward();
  KernelRate rate{.isa = isa, .max_error = error_of(ours, given.pass, work)};
  if (!(rate.max_error <= tolerance(given.dtype))) {
    fail<Error>("bench: the kernel is wrong by {:.3g}; nothing was timed", rate.max_error);
  }
  std::optional<Sdpa> sdpa;
  if (with_sdpa && given.world == 1 && (given.mask == "causal" || given.mask == "full")) {
    sdpa.emplace(work.inputs, work.dout_BLHE, given.mask == "causal");
    sdpa->forward();
    if (!forward) sdpa->backward();
  }

  const double flops = (forward ? 4.0 : 10.0) * static_cast<double>(given.head_dim * given.heads) *
                       static_cast<double>(work.mask.area(work.pairs.q_runs, work.pairs.k_runs));
  std::vector<double> rates, peaks, sdpa_rates;
  for (double spent = 0; spent < seconds || rates.size() < 3;) {
    spent += seconds_of([&] { peaks.push_back(peak_gflops(isa, given.threads, 0.02)); });
    const double own = seconds_of([&] { run(ours); });
    rates.push_back(flops / own / 1e9);
    spent += own;
    if (!sdpa) continue;
    const double theirs = seconds_of([&] { run(*sdpa); });
    sdpa_rates.push_back(flops / theirs / 1e9);
    spent += theirs;
  }
  rate.gflops = median(rates);
  rate.peak_gflops = median(peaks);
  if (sdpa) rate.sdpa_gflops = median(sdpa_rates);
  rate.rounds = static_cast<int>(rates.size());
  return rate;
}

}  // namespace armillary::bench
