// The case becomes the pairs of rank 0 of its layout, with random inputs. The kernel and PyTorch's
// flash kernel run once, which warms them up and gives the results to check; from then on each side
// times one forward, or one backward, of its own.
#include "armillary/lab/bench/kernel_rate.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/lab/bench/cores.h"
#include "armillary/lab/bench/peak.h"
#include "armillary/lab/bench/sdpa.h"
#include "armillary/plan/layout.h"

namespace armillary::bench {
namespace {

/// Refuses sizes that the layout, the mask and the kernel would not refuse by themselves.
void check(const KernelCase& spec) {
  if (spec.tokens < 1 || spec.world < 1 || spec.heads < 1 || spec.kv_heads < 1 ||
      spec.heads % spec.kv_heads != 0) {
    fail<InvalidArgument>(
        "bench: {}, world {}, {}, {}; at least 1 each, heads a multiple of "
        "KV heads, are required",
        count_of(spec.tokens, "token"), spec.world, count_of(spec.heads, "head"),
        count_of(spec.kv_heads, "KV head"));
  }
  if (spec.threads < 1 || spec.threads > kMaxThreads) {
    fail<InvalidArgument>("bench: {}; 1 to {} is required", count_of(spec.threads, "thread"),
                          kMaxThreads);
  }
}

/// Runs the pass of a case that is timed.
template <class Attention>
void run(Attention& attention, plan::Pass pass) {
  pass == plan::Pass::Forward ? attention.forward() : attention.backward();
}

}  // namespace

/// Everything that the sides share. It does not move, because pairs point to the mask.
struct KernelRate::Work {
  explicit Work(const KernelCase& of)
      : spec(of), mask(plan::parse_mask(of.mask, {of.tokens * of.world, of.tokens * of.world})) {
    const plan::Shards shards = plan::shards(plan::parse_layout(of.layout), mask, of.world);
    pairs = {.q_runs = shards.q[0],
             .k_runs = shards.kv[0],
             .mask = &mask,
             .heads = {.group_size = of.heads / of.kv_heads}};
    const Sample random = sample({.dtype = of.dtype,
                                  .q_tokens = plan::tokens(pairs.q_runs),
                                  .k_tokens = plan::tokens(pairs.k_runs),
                                  .heads = of.heads,
                                  .kv_heads = of.kv_heads,
                                  .head_dim = of.head_dim});
    inputs = {.q_BLHD = random.q_BLHD,
              .k_BLGD = random.k_BLGD,
              .v_BLGE = random.v_BLGD,
              .score = {.scale = 1 / std::sqrt(static_cast<double>(of.head_dim))}};
    dout_BLHE = random.dout_BLHD;
    ours.emplace(kernel::cpu_kernel(), pairs, inputs, dout_BLHE);
    if (of.sdpa && of.world == 1 && (of.mask == "causal" || of.mask == "full")) {
      sdpa.emplace(inputs, dout_BLHE, of.mask == "causal");
    }
  }

  /// Runs both passes that the results need, for the first time.
  template <class Attention>
  void run_first(Attention& attention) const {
    attention.forward();
    if (spec.pass == plan::Pass::Backward) attention.backward();
  }

  KernelCase spec;
  plan::Mask mask;
  kernel::Pairs pairs;
  kernel::Inputs inputs;
  at::Tensor dout_BLHE;
  std::optional<AttentionCase> ours;
  std::optional<Sdpa> sdpa;
};

KernelRate::KernelRate(const KernelCase& spec) {
  const c10::NoGradGuard no_grad;
  // Phase 1 of 3: the case. Flops count 2 products forward and 5 backward, 2 D each, for every
  // visible pair and query head.
  check(spec);
  facts_.isa = kernel::cpu::current_isa().name;
  at::set_num_threads(spec.threads);
  work_ = std::make_unique<Work>(spec);
  facts_.flops = (spec.pass == plan::Pass::Forward ? 4.0 : 10.0) *
                 static_cast<double>(spec.head_dim * spec.heads) *
                 static_cast<double>(work_->mask.area(work_->pairs.q_runs, work_->pairs.k_runs));
  // Phase 2 of 3: our result, which must be right.
  work_->run_first(*work_->ours);
  const bool backward = spec.pass == plan::Pass::Backward;
  const std::vector<at::Tensor> exact =
      exact_first_head(work_->pairs, work_->inputs, work_->dout_BLHE, backward);
  facts_.max_error = error_of(work_->ours->results(backward), exact);
  require_right("the kernel", facts_.max_error, spec.dtype);
  // Phase 3 of 3: the result of PyTorch, whose error is a fact and no condition.
  if (!work_->sdpa) return;
  work_->run_first(*work_->sdpa);
  facts_.sdpa_max_error = error_of(work_->sdpa->results(backward, spec.kv_heads), exact);
}

KernelRate::~KernelRate() = default;

std::vector<Side> KernelRate::sides() {
  const auto rate = [this](auto& attention) {
    const c10::NoGradGuard no_grad;
    return facts_.flops / seconds_of([&] { run(attention, work_->spec.pass); }) / 1e9;
  };
  std::vector<Side> sides;
  // The cores come first in a turn: they are those that the sides behind them find.
  if (work_->spec.threads > 1) sides.push_back(cores_side());
  sides.push_back({"peak", [this] {
                     return peak_gflops(facts_.isa, work_->spec.dtype, work_->spec.threads, 0.1);
                   }});
  sides.push_back({"kernel", [this, rate] { return rate(*work_->ours); }});
  if (work_->sdpa) sides.push_back({"sdpa", [this, rate] { return rate(*work_->sdpa); }});
  return sides;
}

}  // namespace armillary::bench
