// Promises of the CPU kernel beyond the rules of every kernel (reference_test.cpp,
// features_test.cpp): accuracy against fp64 and against PyTorch, the same bits for any number of
// threads, and error texts.
#include "armillary/kernel/cpu_kernel.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"
#include "armillary/kernel/testing/dealt_attention.h"
#include "armillary/kernel/testing/feature_sets.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

class CpuKernel : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (sanitizer_samples() && is_emulated()) GTEST_SKIP() << "[SKIP] the paths of Kernels/Rules";
  }
  const cpu::IsaKernels& isa() const { return cpu::isa_named(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Isas, CpuKernel, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

/// Sets the number of intra-op threads while it lives.
class Threads {
 public:
  explicit Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

/// One call over everything.
Deal whole(const Mask& mask, std::int64_t heads, bool all = false) {
  return {.q_blocks = {run(0, mask.q_len())},
          .k_blocks = {run(0, mask.kv_len())},
          .q_heads = {{0, heads}},
          .all = all};
}

// Several row blocks, ragged ends, dims that fill no panel, and more rows than are packed at once:
// that is 4096 keys (forward) or queries (backward) if both dims are 256, hardly more for 250 and
// 256, and less than one query row block of 48 heads. Emulated sets take the dtypes, and whether
// all is done at once, in turn over the cases, from one that is drawn.
TEST_P(CpuKernel, EqualsTheReferenceInFp64) {
  unsigned case_number = samples(is_emulated()) ? test_seed() : 0;
  const std::int64_t long_side = samples(is_emulated()) ? 901 : test_all() ? 9001 : 4301;
  struct Case {
    plan::Lengths lengths;
    std::string mask;
    std::int64_t batch, heads, kv_heads, head_dim, value_dim;
  };
  for (const auto& [lengths, text, batch, heads, kv_heads, head_dim, value_dim] :
       std::vector<Case>{{{601, 601}, "causal", 2, 3, 1, 72, 40},
                         {{517, 517}, "documents:100,3,200,214", 1, 2, 2, 64, 64},
                         {{700, 700}, "window:left=130,right=7", 1, 2, 1, 128, 128},
                         {{523, 523}, "block_causal:50", 1, 1, 1, 136, 24},
                         {{51, 195}, "causal:align=end", 1, 2, 1, 34, 66},
                         {{51, 195}, "causal:align=end", 1, 2, 1, 34, 33},
                         {{1, 300}, "full", 3, 4, 2, 80, 100},
                         {{100, 61}, "full", 1, 48, 1, 256, 256},
                         {{long_side, 61}, "full", 1, 1, 1, 250, 256},
                         {{61, long_side}, "full", 1, 1, 1, 256, 256},
                         {{long_side, long_side}, "window:left=40,right=9", 1, 2, 1, 256, 256}}) {
    // In a sample, rows are packed at once whatever the length, and long dims take no other path.
    if (sanitizer_samples() && (head_dim > 72 || lengths.q == long_side)) continue;
    const Mask mask = plan::parse_mask(text, lengths);
    unsigned turn = case_number++;
    const bool sampled_at_once = turn / 2 % 2 == 0;
    for (const at::ScalarType dtype : dtypes()) {
      if (samples(is_emulated()) && turn++ % 2 == 0) continue;
      const Sequences x = random_sequences({.batch = batch,
                                            .heads = heads,
                                            .kv_heads = kv_heads,
                                            .head_dim = head_dim,
                                            .value_dim = value_dim},
                                           mask, dtype, 3);
      const double scale = 1 / std::sqrt(head_dim);
      const std::string name = fmt::format("{}, {} x {}, dims {} and {}, {}", text, lengths.q,
                                           lengths.kv, head_dim, value_dim, c10::toString(dtype));
      const Results exact = shared_results(name, [&, heads = heads] {
        return dealt_attention(reference(), to_double(x), mask, whole(mask, heads), scale);
      });
      const Threads two(2);
      for (const bool all : {false, true}) {
        if (samples(is_emulated()) && all != sampled_at_once) continue;
        Deal deal = whole(mask, heads, all);
        deal.max_logit = all;
        Results results = dealt_attention(kernel(), x, mask, deal, scale);
        if (!deal.max_logit) results.max_logit_H = exact.max_logit_H;
        expect_near(results, exact, tolerance(dtype), name + (all ? ", at once" : ""));
      }
    }
  }
}

/// Work of a team that ends when two threads are in it at the same time.
struct ThreadMeeting {
  std::mutex mutex;
  std::condition_variable changed;
  int present = 0;
  bool met = false;

  static void join(void* meeting) {
    auto& self = *static_cast<ThreadMeeting*>(meeting);
    std::unique_lock lock(self.mutex);
    if (++self.present == 2) {
      self.met = true;
      self.changed.notify_all();
    }
    self.changed.wait_for(lock, std::chrono::seconds(60), [&] { return self.met; });
    --self.present;
  }
};

TEST(IntraOpTeam, IsAsManyThreadsAsTheWorkIsWorth) {
  const Threads two(2);
  EXPECT_EQ(intra_op_team(1e5).threads, 1);
  const cpu::Team team = intra_op_team(1e9);
  ASSERT_EQ(team.threads, 2);
  ThreadMeeting meeting;
  team.run(team.threads, &ThreadMeeting::join, &meeting);
  EXPECT_TRUE(meeting.met) << "both shares ran on one thread";
}

TEST_P(CpuKernel, TheSameBitsForAnyNumberOfThreads) {
  const Mask mask = plan::parse_mask("documents:400,300,220", {.q = 920, .kv = 920});
  const std::int64_t batch = samples(is_emulated()) ? 1 : 2;
  for (const auto& [set, dtype, all] :
       {std::tuple(0u, at::kFloat, false), std::tuple(kAllFeatures, at::kFloat, true),
        std::tuple(kAllFeatures, at::kBFloat16, false),
        std::tuple(kAllFeatures, at::kBFloat16, true)}) {
    const Features features = features_of(set, 3, 0.2);
    const Sequences x = random_sequences(
        {.batch = batch, .heads = 3, .kv_heads = 1, .head_dim = 24}, mask, dtype, 19);
    const std::string where = c10::toString(dtype);
    const Deal deal = whole(mask, 3, all);
    const auto with = [&](int threads) {
      const Threads guard(threads);
      return dealt_attention(kernel(), x, mask, deal, features);
    };
    const Results one = with(1);
    for (const int threads : {1, 2, 3}) {
      if (samples(is_emulated()) && threads != 3) continue;
      for_each_result(
          with(threads), one, [&](const char* name, const at::Tensor& a, const at::Tensor& b) {
            EXPECT_TRUE(at::equal(a, b)) << name << ", " << threads << " threads, " << where;
          });
    }
  }
}

// attend_all and attend_grad_all round last: before that they have the same bits as separate calls.
TEST_P(CpuKernel, AtOnceIsOneByOneRounded) {
  const Mask mask = plan::parse_mask("documents:400,300,220,within=causal", {.q = 920, .kv = 920});
  const std::int64_t batch = samples(is_emulated()) ? 1 : 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Sequences x = random_sequences(
        {.batch = batch, .heads = 3, .kv_heads = 1, .head_dim = 24}, mask, dtype, 19);
    const Results all = dealt_attention(kernel(), x, mask, whole(mask, 3, true), 0.2);
    const Results one_by_one = dealt_attention(kernel(), x, mask, whole(mask, 3), 0.2);
    for_each_result(all, one_by_one,
                    [&](const char* name, const at::Tensor& a, const at::Tensor& b) {
                      EXPECT_TRUE(at::equal(a, b.to(dtype).to(b.scalar_type())) || at::equal(a, b))
                          << name << ", " << dtype;
                    });
  }
}

/// PyTorch's flash attention on CPUs in the dtype of the inputs, with gradients.
Results torch_flash(const Sequences& x, bool causal, double scale) {
  const auto heads_first = [](const at::Tensor& t) { return t.transpose(1, 2); };
  const at::Tensor q = heads_first(x.q_BSHD);
  const at::Tensor k = heads_first(x.k_BSGD);
  const at::Tensor v = heads_first(x.v_BSGE);
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, causal, {}, scale);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      heads_first(x.dout_BSHE), q, k, v, out, lse, 0, causal, {}, scale);
  return {heads_first(out), {}, heads_first(dq), heads_first(dk), heads_first(dv)};
}

TEST_P(CpuKernel, HalfPrecisionErrsNoMoreThanPyTorch) {
  if (sanitizer_samples()) GTEST_SKIP() << "[SKIP] about rounding, not about memory";
  for (const std::string text : {"full", "causal"}) {
    const Mask mask = plan::parse_mask(text, {.q = 700, .kv = 700});
    const Sequences x = random_sequences(
        {.heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64}, mask, at::kBFloat16, 11);
    const Results torch = torch_flash(x, text == "causal", 0.125);
    const Results exact =
        dealt_attention(reference(), to_double(x), mask, whole(mask, 2), Score{.scale = 0.125});
    const Results results = dealt_attention(kernel(), x, mask, whole(mask, 2, true), 0.125);
    const auto expect = [&](const char* name, at::Tensor Results::*field) {
      EXPECT_LE(relative_error(results.*field, exact.*field),
                relative_error(torch.*field, exact.*field))
          << name << ", " << text;
    };
    expect("out", &Results::out_BSHE);
    expect("dq", &Results::dq_BSHD);
    expect("dk", &Results::dk_BSGD);
    expect("dv", &Results::dv_BSGE);
  }
}

/// Gradients for scale 1, queries (1, 0, ..), keys (0, 1, 0, ..), values 0 and dO 1. Every score is
/// 0, and P = dS = 1 + 2^-10 by the choice of the log-sum-exp.
InputGrads grads_of_equal_weights(const Kernel& kernel, const Mask& mask, std::int64_t head_dim,
                                  std::int64_t stride) {
  const auto unit = [&](std::int64_t rows, std::int64_t one) {
    at::Tensor x = at::zeros({1, rows, 1, stride}, at::kBFloat16).narrow(3, 0, head_dim);
    x.select(3, one).fill_(1);
    return x;
  };
  const Inputs inputs{unit(mask.q_len(), 0),
                      unit(mask.kv_len(), 1),
                      at::zeros({1, mask.kv_len(), 1, 2}, at::kBFloat16),
                      {.scale = 1}};
  const at::Tensor dout = at::ones({1, mask.q_len(), 1, 2}, at::kBFloat16);
  const at::Tensor lse = at::full({1, mask.q_len(), 1}, -std::log1p(0x1p-10), at::kFloat);
  const auto zeros = [](const at::Tensor& x) { return at::zeros(x.sizes(), at::kFloat); };
  InputGrads grads{zeros(inputs.q_BLHD), zeros(inputs.k_BLGD), zeros(inputs.v_BLGE)};
  kernel.attend_grad(
      {.q_runs = run(0, mask.q_len()), .k_runs = run(0, mask.kv_len()), .mask = &mask, .heads = {}},
      inputs, {dout, lse, at::full_like(lse, -1)}, grads);
  return grads;
}

// bf16 cannot hold 1 + 2^-10, so as a factor of bf16_dot it is 1. It cannot hold 257 or 301 either:
// only fp32 sums give these values.
TEST_P(CpuKernel, GradientsInPairsRoundFactorsAndNotSums) {
  const bool has_bf16_dot = isa().bf16_dot.backward != nullptr;
  EXPECT_EQ(has_bf16_dot, GetParam() == "avx512_bf16" || GetParam() == "emulated" ||
                              GetParam() == "amx" || GetParam() == "emulated_amx");
  const Mask mask = plan::full_mask({.q = 257, .kv = 301});
  for (const auto& [head_dim, stride] : {std::pair(2, 2), std::pair(3, 4), std::pair(4, 5)}) {
    const InputGrads grads = grads_of_equal_weights(kernel(), mask, head_dim, stride);
    // Rows that do not begin at a 32-bit word are multiplied in fp32, except by tiles.
    const bool by_bf16_dot =
        has_bf16_dot && (!isa().bf16_dot.needs_words || (head_dim % 2 == 0 && stride % 2 == 0));
    const std::string where = fmt::format("{} of {}", head_dim, stride);
    const auto expect = [&](const char* name, const at::Tensor& result, double terms) {
      const double required = by_bf16_dot ? terms : terms * (1 + 0x1p-10);
      const double bound = by_bf16_dot ? 0 : 1e-5;
      EXPECT_LE(relative_error(result, at::full_like(result, required, at::kDouble)), bound)
          << name << ", " << where;
    };
    expect("dq", grads.dq_BLHD.select(3, 1), 301);
    expect("dk", grads.dk_BLGD.select(3, 0), 257);
    expect("dv", grads.dv_BLGE, 257);
  }
}

TEST_P(CpuKernel, PreparedOrNotIsTheSame) {
  const Mask mask = plan::parse_mask("causal", {.q = 300, .kv = 300});
  const Sequences x = random_sequences({}, mask, at::kFloat, 5);
  Pairs pairs{.q_runs = run(100, 300), .k_runs = run(0, 200), .mask = &mask, .heads = {}};
  const Inputs inputs{x.q_BSHD.slice(1, 100, 300),
                      x.k_BSGD.slice(1, 0, 200),
                      x.v_BSGE.slice(1, 0, 200),
                      {.scale = 0.3}};
  const auto attend = [&] {
    Partial carry{at::zeros({1, 200, 1, 8}), at::zeros({1, 200, 1})};
    clear(carry);
    kernel().attend(pairs, inputs, carry);
    return carry.out_BLHE;
  };
  const at::Tensor init = attend();
  pairs.prepared = kernel().prepare(pairs);
  ASSERT_NE(pairs.prepared, nullptr);
  EXPECT_TRUE(at::equal(init, attend()));
  EXPECT_TRUE(at::equal(init, attend()));
  EXPECT_EQ(reference().prepare(pairs), nullptr);
}

// Inputs and results whose last dim is not contiguous.
TEST_P(CpuKernel, AnyStrides) {
  const Mask mask = plan::full_mask({.q = 20, .kv = 20});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 2}, mask, at::kFloat, 5);
  const auto permuted = [](const at::Tensor& t) {
    return t.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0});
  };
  const Pairs pairs{.q_runs = run(0, 20), .k_runs = run(0, 20), .mask = &mask, .heads = {}};
  const auto results = [&](const std::function<at::Tensor(const at::Tensor&)>& layout) {
    const Inputs inputs{layout(x.q_BSHD), layout(x.k_BSGD), layout(x.v_BSGE), {.scale = 0.3}};
    Partial carry{layout(at::zeros({1, 20, 2, 8})), layout(at::zeros({1, 20, 2, 1})).select(3, 0)};
    clear(carry);
    kernel().attend(pairs, inputs, carry);
    InputGrads grads{layout(at::zeros_like(x.q_BSHD)), layout(at::zeros_like(x.k_BSGD)),
                     layout(at::zeros_like(x.v_BSGE))};
    kernel().attend_grad(pairs, inputs, {layout(x.dout_BSHE), carry.lse_BLH, carry.lse_BLH}, grads);
    return std::vector<at::Tensor>{carry.out_BLHE, carry.lse_BLH, grads.dq_BLHD, grads.dk_BLGD,
                                   grads.dv_BLGE};
  };
  const auto required = results([](const at::Tensor& t) { return t.clone(); });
  const auto values = results(permuted);
  for (std::size_t i = 0; i < required.size(); ++i) {
    EXPECT_TRUE(at::equal(values[i], required[i])) << i;
  }
}

// Rows of bf16 of which all, or every second one, begin in the middle of a 32-bit word.
TEST_P(CpuKernel, Bf16RowsBetweenWords) {
  const Mask mask = plan::parse_mask("causal", {.q = 70, .kv = 70});
  const Sequences x =
      random_sequences({.heads = 3, .kv_heads = 1, .head_dim = 34}, mask, at::kBFloat16, 6);
  const auto moved = [](const at::Tensor& t, std::int64_t offset, std::int64_t more) {
    std::vector<std::int64_t> shape = t.sizes().vec();
    shape.back() += more;
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) elements *= size;
    at::Tensor there = at::zeros({elements + offset}, t.options()).narrow(0, offset, elements);
    there = there.view(shape).narrow(-1, 0, t.size(-1));
    there.copy_(t);
    return there;
  };
  const Results required =
      dealt_attention(reference(), to_double(x), mask, whole(mask, 3, true), 0.2);
  for (const auto& [offset, more] : {std::pair{0, 0}, {1, 0}, {0, 1}}) {
    Sequences there = x;
    for (at::Tensor* t : {&there.q_BSHD, &there.k_BSGD, &there.v_BSGE, &there.dout_BSHE}) {
      *t = moved(*t, offset, more);
    }
    expect_near(dealt_attention(kernel(), there, mask, whole(mask, 3, true), 0.2), required,
                tolerance(at::kBFloat16), fmt::format("offset {}, {} between rows", offset, more));
  }
}

// Scores of -3 to 3 times a power of two are exact in every dtype, and grow from block to block.
// The largest ones have equal weights, all others weight 0.
TEST_P(CpuKernel, HugeScoresAreExact) {
  const Mask mask = plan::parse_mask("full", {.q = 30, .kv = 1200});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int exponent : {12, 15, 30, 52, 100}) {
      Sequences x = random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 16}, mask, dtype, 5);
      x.q_BSHD.zero_().select(3, 0).fill_(std::ldexp(1.0, exponent));
      x.k_BSGD.select(3, 0).copy_(
          (at::arange(1200) * 7).floor_divide(1200).sub(3).view({1, -1, 1}));
      const auto with = [&](const Kernel& kernel, const Sequences& sequences) {
        return dealt_attention(kernel, sequences, mask, whole(mask, 1), Score{.scale = 0.5});
      };
      const Results results = with(kernel(), x);
      const Results exact = with(reference(), to_double(x));
      const double bound = dtype == at::kFloat ? 1e-6 : 0x1p-8;
      EXPECT_LE(relative_error(results.out_BSHE, exact.out_BSHE), bound)
          << dtype << ", " << exponent;
      EXPECT_LE(relative_error(results.lse_BSH, exact.lse_BSH), 1e-6) << dtype << ", " << exponent;
    }
  }
}

// A scale of 0 makes all visible scores equal; a negative scale reverses their order.
TEST_P(CpuKernel, ScalesThatAreNotPositive) {
  const Mask mask = plan::parse_mask("causal", {.q = 70, .kv = 70});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kBFloat16, 7);
  for (const double scale : {0.0, -0.7}) {
    const Results results =
        dealt_attention(kernel(), x, mask, whole(mask, 2), Score{.scale = scale});
    const Results exact =
        dealt_attention(reference(), to_double(x), mask, whole(mask, 2), Score{.scale = scale});
    for_each_result(
        results, exact, [&](const char* name, const at::Tensor& a, const at::Tensor& b) {
          EXPECT_TRUE(a.isfinite().all().item<bool>()) << name << ", " << scale;
          EXPECT_TRUE(at::allclose(a.to(at::kDouble), b, 0.02, 0.02)) << name << ", " << scale;
        });
  }
}

// Rule 3, in a case where the block of keys with the NaN also raises the maxima.
TEST_P(CpuKernel, ANanOfTheLastKeyReachesItsQueryOnly) {
  const Mask mask = plan::parse_mask("causal", {.q = 128, .kv = 128});
  Sequences x = random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 96}, mask,
                                 at::kBFloat16, 5);
  x.k_BSGD.slice(1, 90).mul_(4);
  const Results finite = dealt_attention(kernel(), x, mask, whole(mask, 1), 0.5);
  x.v_BSGE.select(1, 127).fill_(std::numeric_limits<double>::quiet_NaN());
  const Results nonfinite = dealt_attention(kernel(), x, mask, whole(mask, 1), 0.5);
  EXPECT_LE(relative_error(nonfinite.out_BSHE.slice(1, 0, 127), finite.out_BSHE.slice(1, 0, 127)),
            0x1p-7);
  EXPECT_TRUE(nonfinite.out_BSHE.select(1, 127).isnan().all().item<bool>());
}

// With a softcap the scores of an infinite key are finite. Padding rows after the last query must
// not multiply it: 0 * Inf is NaN.
TEST_P(CpuKernel, InfiniteKeysWithASoftcap) {
  const Mask mask = plan::full_mask({.q = 50, .kv = 96});
  Sequences x =
      random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 16}, mask, at::kBFloat16, 5);
  x.q_BSHD.select(3, 0).fill_(1);
  x.k_BSGD.select(1, 66).select(1, 0).select(1, 0).fill_(std::numeric_limits<double>::infinity());
  const Score score{.scale = 0.3, .softcap = 5};
  const Results results = dealt_attention(kernel(), x, mask, whole(mask, 1), score);
  EXPECT_TRUE(results.dv_BSGE.isfinite().all().item<bool>());
  EXPECT_TRUE(results.dk_BSGD.slice(1, 0, 66).isfinite().all().item<bool>());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::string attend_error(
    std::int64_t head_dim, std::int64_t value_dim,
    const std::function<void(Partial&)>& spoil = [](Partial&) {}) {
  const Mask mask = plan::full_mask({.q = 3, .kv = 5});
  Partial carry{at::zeros({2, 3, 4, value_dim}), at::zeros({2, 3, 4})};
  spoil(carry);
  const Inputs inputs{at::zeros({2, 3, 4, head_dim}),
                      at::zeros({2, 5, 4, head_dim}),
                      at::zeros({2, 5, 4, value_dim}),
                      {}};
  const Pairs pairs{.q_runs = run(0, 3), .k_runs = run(0, 5), .mask = &mask, .heads = {}};
  return error_of([&] { cpu_kernel().attend(pairs, inputs, carry); });
}

TEST(CpuKernelErrors, DimsAndStrides) {
  EXPECT_EQ(attend_error(8, 8), "no error");
  EXPECT_EQ(attend_error(257, 8), "attend: head dim 257; 1 to 256 is required");
  EXPECT_EQ(attend_error(8, 300), "attend: value dim 300; 1 to 256 is required");
  EXPECT_EQ(attend_error(0, 8), "attend: head dim 0; 1 to 256 is required");
  EXPECT_EQ(attend_error(8, 6,
                         [](Partial& carry) {
                           carry.out_BLHE = at::zeros({2, 3, 1, 6}).expand({2, 3, 4, 6});
                         }),
            "attend: carry.out_BLHE has shape [2, 3, 4, 6] and strides [18, 6, 0, 1]; elements "
            "that do not share memory are required");
  EXPECT_EQ(attend_error(8, 6,
                         [](Partial& carry) {
                           carry.lse_BLH = at::zeros({100}).as_strided({2, 3, 4}, {4, 4, 1});
                         }),
            "attend: carry.lse_BLH has shape [2, 3, 4] and strides [4, 4, 1]; elements that do "
            "not share memory are required");
}

TEST(CpuKernelErrors, InstructionSets) {
  std::vector<std::string> names;
  for (const cpu::IsaKernels* isa : cpu::all_isas()) {
    if (cpu::runs_here(*isa)) names.emplace_back(isa->name);
  }
  const std::string required = list_names(names) + " is required";
  EXPECT_EQ(error_of([] { cpu_kernel("sse9"); }), "ARMILLARY_ISA: sse9; " + required);
  EXPECT_EQ(error_of([] { cpu_kernel("portible"); }),
            "ARMILLARY_ISA: portible; " + required + "; nearest: portable");
  for (const cpu::IsaKernels* isa : cpu::all_isas()) {
    const std::string name = isa->name;
    const std::string missing = cpu::missing_for(name);
    EXPECT_EQ(error_of([&] { cpu_kernel(name); }),
              missing.empty() ? "no error"
                              : fmt::format("ARMILLARY_ISA: {}: {}; {}", name, missing, required));
  }
}

}  // namespace
}  // namespace armillary::kernel
