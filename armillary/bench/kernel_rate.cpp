#include "armillary/bench/kernel_rate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "armillary/bench/block.h"
#include "armillary/bench/cores.h"
#include "armillary/bench/peak.h"
#include "armillary/bench/sdpa.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/layout.h"

namespace armillary::bench {
namespace {

void check(const KernelCase& given) {
  if (given.tokens < 1 || given.world < 1 || given.heads < 1 || given.kv_heads < 1 ||
      given.heads % given.kv_heads != 0) {
    fail<InvalidArgument>(
        "bench: {} tokens, world {}, {} heads, {} KV heads; at least 1 each, heads a multiple of "
        "KV heads, are required",
        given.tokens, given.world, given.heads, given.kv_heads);
  }
  if (given.threads < 1 || given.threads > kMaxThreads) {
    fail<InvalidArgument>("bench: {} threads; 1 to {} is required", given.threads, kMaxThreads);
  }
}

template <class Attention>
void run(Attention& attention, plan::Pass pass) {
  pass == plan::Pass::Forward ? attention.forward() : attention.backward();
}

}  // namespace

struct KernelRate::Work {
  explicit Work(const KernelCase& of)
      : given(of), mask(plan::parse_mask(of.mask, {of.tokens * of.world, of.tokens * of.world})) {
    const plan::Shards shards = plan::shards(plan::parse_layout(of.layout), mask, of.world);
    pairs = {.q_runs = shards.q[0],
             .k_runs = shards.kv[0],
             .mask = &mask,
             .heads = {.group_size = of.heads / of.kv_heads}};
    const Sample random = sample(of.dtype, plan::tokens(pairs.q_runs), plan::tokens(pairs.k_runs),
                                 of.heads, of.kv_heads, of.head_dim);
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

  /// Once, which warms it up too.
  template <class Attention>
  void run_first(Attention& attention) const {
    attention.forward();
    if (given.pass == plan::Pass::Backward) attention.backward();
  }

  KernelCase given;
  plan::Mask mask;
  kernel::Pairs pairs;  // which point to the mask
  kernel::Inputs inputs;
  at::Tensor dout_BLHE;
  std::optional<Block> ours;
  std::optional<Sdpa> sdpa;
};

KernelRate::KernelRate(const KernelCase& given) {
  const c10::NoGradGuard no_grad;
  check(given);
  facts_.isa = kernel::cpu::current_isa().name;
  at::set_num_threads(given.threads);
  work_ = std::make_unique<Work>(given);
  facts_.flops = (given.pass == plan::Pass::Forward ? 4.0 : 10.0) *
                 static_cast<double>(given.head_dim * given.heads) *
                 static_cast<double>(work_->mask.area(work_->pairs.q_runs, work_->pairs.k_runs));
  work_->run_first(*work_->ours);
  const bool backward = given.pass == plan::Pass::Backward;
  const std::vector<at::Tensor> exact =
      exact_first_head(work_->pairs, work_->inputs, work_->dout_BLHE, backward);
  facts_.max_error = error_of(work_->ours->results(backward), exact);
  require_right("the kernel", facts_.max_error, given.dtype);
  if (!work_->sdpa) return;
  work_->run_first(*work_->sdpa);
  facts_.sdpa_max_error = error_of(work_->sdpa->results(backward, given.kv_heads), exact);
}

KernelRate::~KernelRate() = default;

std::vector<Side> KernelRate::sides() {
  const auto rate = [this](auto& attention) {
    const c10::NoGradGuard no_grad;
    return facts_.flops / seconds_of([&] { run(attention, work_->given.pass); }) / 1e9;
  };
  std::vector<Side> sides;
  if (work_->given.threads > 1) sides.push_back(cores_side());
  sides.push_back({"peak", [this] {
                     return peak_gflops(facts_.isa, work_->given.dtype, work_->given.threads, 0.1);
                   }});
  sides.push_back({"kernel", [this, rate] { return rate(*work_->ours); }});
  if (work_->sdpa) sides.push_back({"sdpa", [this, rate] { return rate(*work_->sdpa); }});
  return sides;
}

}  // namespace armillary::bench
