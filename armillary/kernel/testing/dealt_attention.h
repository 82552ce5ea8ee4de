// dealt_attention.h: one attention split into many kernel calls, as a plan does it. For tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/reference.h"
#include "armillary/kernel/testing/feature_sets.h"
#include "armillary/kernel/testing/naive_attention.h"

namespace armillary::kernel {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Tests with a kernel as parameter, by name: "reference", or an instruction set of the CPU kernel.
class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const cpu::IsaKernels* isa : cpu::all_isas()) {
      if (isa->name == GetParam() && !cpu::runs_here(*isa)) {
        GTEST_SKIP() << "[SKIP] this CPU has no " << GetParam();
      }
      if (isa->name == stood_for() && cpu::runs_here(*isa) &&
          std::getenv("ARMILLARY_TEST_ALL") == nullptr) {
        GTEST_SKIP() << "[SKIP] this CPU has " << isa->name << ", which is the same code";
      }
    }
  }
  const Kernel& kernel() const {
    return GetParam() == "reference" ? reference() : cpu_kernel(GetParam());
  }
  /// An emulated set takes ten times as long as the instructions that it stands for.
  static bool is_emulated() { return GetParam().starts_with("emulated"); }
  /// The set that an emulated one stands for, if it is compiled in and runs; else empty.
  static std::string_view stood_for() {
    if (GetParam() == "emulated") return "avx512_bf16";
    return GetParam() == "emulated_amx" ? "amx" : "";
  }
  /// dtypes to test. The CPU kernel hands fp64 to the reference, so it is not tested with fp64.
  std::vector<at::ScalarType> dtypes() const {
    if (GetParam() == "reference") return {at::kDouble, at::kFloat};
    return {at::kFloat, at::kBFloat16};
  }
  at::ScalarType dtype() const { return dtypes().front(); }
};

inline std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const cpu::IsaKernels* isa : cpu::all_isas()) names.emplace_back(isa->name);
  return names;
}

inline std::vector<std::string> kernel_names() {
  std::vector<std::string> names = isa_names();
  names.insert(names.begin(), "reference");
  return names;
}

/// Bound on relative errors. Only the order of sums differs from one softmax over all keys, which
/// costs some 10 to 50 roundings of 2^-53 or 2^-24 here. In bf16, weights, outputs and dS have
/// rounding errors of up to 2^-9 each, and differences of nearly equal terms (dP - delta, the sum
/// of sinks over rows) have larger ones.
inline double tolerance(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x1p-5;
  return dtype == at::kDouble ? 1e-12 : 1e-5;
}

/// A split of one attention into kernel calls. Each range of query heads and block of queries has
/// its own partial, and attends the blocks of keys in the given order.
struct Deal {
  std::vector<plan::Runs> q_blocks;
  std::vector<plan::Runs> k_blocks;
  std::vector<plan::Interval> q_heads;
  bool all = false;       ///< by attend_all and attend_grad_all; requires one block of keys
  bool max_logit = true;  ///< ask for it; without it, kernels look at scores less often
};

/// A copy of `x` as a view into the middle of a larger tensor full of NaN.
inline at::Tensor in_slot(const at::Tensor& x) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[1] += 3;
  shape[2] += 2;
  const at::Tensor slot = at::full(shape, kNan, x.options());
  const at::Tensor view = slot.narrow(1, 2, x.size(1)).narrow(2, 1, x.size(2));
  return view.copy_(x);
}

inline at::Tensor rows_of(const plan::Runs& runs) {
  return at::tensor(positions(runs), at::kLong);
}

inline at::Tensor part(const at::Tensor& x_BSHX, const plan::Runs& runs, plan::Interval heads) {
  return in_slot(x_BSHX.index_select(1, rows_of(runs)).slice(2, heads.begin, heads.end));
}

inline void add_part(at::Tensor& x_BSHX, const plan::Runs& runs, plan::Interval heads,
                     const at::Tensor& part) {
  x_BSHX.slice(2, heads.begin, heads.end).index_add_(1, rows_of(runs), part);
}

/// Runs one attention, forward and backward, as the kernel calls of a Deal, and adds up the results
/// in accumulators.
class Dealer {
 public:
  Dealer(const Kernel& kernel, const Sequences& x, const plan::Mask& mask, const Deal& deal,
         const Features& features)
      : kernel_(kernel), x_(x), mask_(mask), deal_(deal), features_(features) {}

  Results run() {
    for (const plan::Interval heads : deal_.q_heads) {
      for (const plan::Runs& q_runs : deal_.q_blocks) {
        const QueryBlock block{
            q_runs, heads, {heads.begin / group(), (heads.end + group() - 1) / group()}};
        backward(block, forward(block));
      }
    }
    return results_;
  }

 private:
  /// One block of queries for one range of query heads, and the KV heads that they read.
  struct QueryBlock {
    const plan::Runs& q_runs;
    plan::Interval heads;
    plan::Interval kv_heads;
  };

  std::int64_t group() const { return x_.q_BSHD.size(2) / x_.k_BSGD.size(2); }

  Pairs pairs(const QueryBlock& block, const plan::Runs& k_runs) const {
    return {.q_runs = block.q_runs,
            .k_runs = k_runs,
            .mask = &mask_,
            .heads = {.first_q_head = block.heads.begin,
                      .first_kv_head = block.kv_heads.begin,
                      .group_size = group()}};
  }
  Inputs inputs(const QueryBlock& block, const plan::Runs& k_runs) const {
    return {.q_BLHD = part(x_.q_BSHD, block.q_runs, block.heads),
            .k_BLGD = part(x_.k_BSGD, k_runs, block.kv_heads),
            .v_BLGE = part(x_.v_BSGE, k_runs, block.kv_heads),
            .score = features_.score};
  }

  /// Attends all blocks of keys, finishes, and computes delta. Returns the inputs of backward.
  OutputGrads forward(const QueryBlock& block) {
    const at::Tensor dout = part(x_.dout_BSHE, block.q_runs, block.heads);
    at::Tensor sinks;
    if (features_.sinks_H.defined()) {
      sinks = features_.sinks_H.slice(0, block.heads.begin, block.heads.end).to(acc_.dtype());
    }
    AttentionOutput result{in_slot(at::full_like(dout, kNan)),
                           in_slot(at::full(dout.sizes().slice(0, 3), kNan, acc_))};
    if (deal_.max_logit) {
      result.max_logit_H = results_.max_logit_H.slice(0, block.heads.begin, block.heads.end);
    }
    attend(block, sinks, result);
    at::Tensor delta_BLH = in_slot(at::zeros_like(result.lse_BLH));
    delta(dout, result.out_BLHE, delta_BLH);
    at::Tensor dsinks = results_.dsinks_H.slice(0, block.heads.begin, block.heads.end);
    if (sinks.defined()) sinks_grad(sinks, result.lse_BLH, delta_BLH, dsinks);
    add_part(results_.out_BSHE, block.q_runs, block.heads, result.out_BLHE.to(acc_.dtype()));
    add_part(results_.lse_BSH, block.q_runs, block.heads, result.lse_BLH);
    return {dout, result.lse_BLH, delta_BLH};
  }

  /// Writes `result`: by attend_all, or by one attend per block of keys and finish.
  void attend(const QueryBlock& block, const at::Tensor& sinks, AttentionOutput& result) const {
    if (deal_.all) {
      const plan::Runs& k_runs = deal_.k_blocks[0];
      return kernel_.attend_all(pairs(block, k_runs), inputs(block, k_runs), sinks, result);
    }
    const bool init = deal_.k_blocks.size() > 1;  // otherwise the carry is cleared
    Partial carry{in_slot(at::full(result.out_BLHE.sizes(), kNan, acc_)),
                  in_slot(at::full_like(result.lse_BLH, kNan)), result.max_logit_H, init};
    if (!init) clear(carry);
    for (const plan::Runs& k_runs : deal_.k_blocks) {
      kernel_.attend(pairs(block, k_runs), inputs(block, k_runs), carry);
    }
    finish(carry, result.out_BLHE, result.lse_BLH, sinks);
  }

  /// Gradients of all blocks of keys, by attend_grad_all or by attend_grad. Some calls initialise
  /// dq, or dk and dv, and some add to zeros.
  void backward(const QueryBlock& block, const OutputGrads& upstream) {
    for (std::size_t i = 0; i < deal_.k_blocks.size(); ++i) {
      const plan::Runs& k_runs = deal_.k_blocks[i];
      const Inputs in = inputs(block, k_runs);
      const bool dq_init = i % 2 == 1;
      const bool dkv_init = i % 3 == 1;
      const auto grad_of = [&](const at::Tensor& x, bool init) {
        if (deal_.all) return in_slot(at::full_like(x, kNan));
        return in_slot(at::full(x.sizes(), init ? kNan : 0.0, acc_));
      };
      InputGrads grads{grad_of(in.q_BLHD, dq_init), grad_of(in.k_BLGD, dkv_init),
                       grad_of(in.v_BLGE, dkv_init), dq_init, dkv_init};
      if (deal_.all) {
        kernel_.attend_grad_all(pairs(block, k_runs), in, upstream, grads);
      } else {
        kernel_.attend_grad(pairs(block, k_runs), in, upstream, grads);
      }
      add_part(results_.dq_BSHD, block.q_runs, block.heads, grads.dq_BLHD.to(acc_.dtype()));
      add_part(results_.dk_BSGD, k_runs, block.kv_heads, grads.dk_BLGD.to(acc_.dtype()));
      add_part(results_.dv_BSGE, k_runs, block.kv_heads, grads.dv_BLGE.to(acc_.dtype()));
    }
  }

  const Kernel& kernel_;
  const Sequences& x_;
  const plan::Mask& mask_;
  const Deal& deal_;
  const Features& features_;
  at::TensorOptions acc_{accumulator(x_.q_BSHD.scalar_type())};
  Results results_{
      at::zeros(x_.dout_BSHE.sizes(), acc_),     at::zeros(x_.dout_BSHE.sizes().slice(0, 3), acc_),
      at::zeros(x_.q_BSHD.sizes(), acc_),        at::zeros(x_.k_BSGD.sizes(), acc_),
      at::zeros(x_.v_BSGE.sizes(), acc_),        at::zeros({x_.q_BSHD.size(2)}, at::kDouble),
      at::full({x_.q_BSHD.size(2)}, -kInf, acc_)};
};

/// Attention over whole sequences, by the kernel calls of `deal`.
inline Results dealt_attention(const Kernel& kernel, const Sequences& x, const plan::Mask& mask,
                               const Deal& deal, const Features& features) {
  return Dealer(kernel, x, mask, deal, features).run();
}

inline Results dealt_attention(const Kernel& kernel, const Sequences& x, const plan::Mask& mask,
                               const Deal& deal, const Score& score) {
  return dealt_attention(kernel, x, mask, deal, Features{.score = score, .sinks_H = {}});
}

inline Results dealt_attention(const Kernel& kernel, const Sequences& x, const plan::Mask& mask,
                               const Deal& deal, double scale) {
  return dealt_attention(kernel, x, mask, deal, Score{.scale = scale});
}

/// Calls visit(name, given, required) for output, log-sum-exp and every gradient.
template <class Visit>
void for_each_result(const Results& results, const Results& required, Visit visit) {
  visit("out", results.out_BSHE, required.out_BSHE);
  visit("lse", results.lse_BSH, required.lse_BSH);
  visit("dq", results.dq_BSHD, required.dq_BSHD);
  visit("dk", results.dk_BSGD, required.dk_BSGD);
  visit("dv", results.dv_BSGE, required.dv_BSGE);
  visit("dsinks", results.dsinks_H, required.dsinks_H);
  visit("max_logit", results.max_logit_H, required.max_logit_H);
}

/// The results that `compute` gives for a name, computed once: all kernels of a test are compared
/// with the same.
template <class Compute>
Results shared_results(const std::string& name, const Compute& compute) {
  static std::map<std::string, Results> by_name;
  const auto known = by_name.find(name);
  return known != by_name.end() ? known->second : by_name.emplace(name, compute()).first->second;
}

inline void expect_near(const Results& results, const Results& required, double bound,
                        const std::string& where) {
  for_each_result(results, required,
                  [&](const char* name, const at::Tensor& a, const at::Tensor& b) {
                    EXPECT_LE(relative_error(a, b), bound) << where << ": " << name;
                  });
}

inline Sequences to_double(Sequences x) {
  for (at::Tensor* t : {&x.q_BSHD, &x.k_BSGD, &x.v_BSGE, &x.dout_BSHE}) *t = t->to(at::kDouble);
  return x;
}

inline plan::Runs run(std::int64_t begin, std::int64_t end) {
  return {plan::run_of({begin, end})};
}

/// Tokens i, i + n, i + 2n, .. of [0, length).
inline plan::Runs stripe(std::int64_t i, std::int64_t n, std::int64_t length) {
  return {{.begin = i, .count = (length - i + n - 1) / n, .step = n}};
}

/// Splits of different kinds: whole, pieces, zigzag, stripes, wide stripes; keys are cut and
/// ordered differently from queries. Requires length > 12.
inline std::vector<Deal> deals(std::int64_t length) {
  const std::int64_t third = length / 3;
  const plan::Runs all = run(0, length);
  const plan::Runs ends = {plan::run_of({0, third}), plan::run_of({2 * third, length})};
  const plan::Runs middle = run(third, 2 * third);
  const plan::Runs wide = {{.begin = 1, .count = 2, .step = 7, .width = 4}};  // 1-4 and 8-11
  const plan::Runs rest = {plan::run_of({12, length}), plan::run_of({0, 1}), plan::run_of({5, 8})};
  return {{.q_blocks = {all}, .k_blocks = {all}, .q_heads = {}},
          {.q_blocks = {all}, .k_blocks = {all}, .q_heads = {}, .all = true},
          {.q_blocks = {wide, rest}, .k_blocks = {all}, .q_heads = {}, .all = true},
          {.q_blocks = {middle, ends}, .k_blocks = {ends, middle}, .q_heads = {}},
          {.q_blocks = {ends, middle},
           .k_blocks = {middle, run(0, third), run(2 * third, length)},
           .q_heads = {}},
          {.q_blocks = {stripe(0, 2, length), stripe(1, 2, length)},
           .k_blocks = {stripe(2, 3, length), stripe(0, 3, length), stripe(1, 3, length)},
           .q_heads = {}},
          {.q_blocks = {wide, rest}, .k_blocks = {rest, {}, wide}, .q_heads = {}}};
}

struct HeadCase {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::vector<plan::Interval> ranges;
};

/// Random sequences with two batch entries. The value dim is 5 or 6 by seed: rows of 5 bf16 do not
/// fill whole 32-bit words, rows of 6 do.
inline Sequences sequences_of(const HeadCase& heads, const plan::Mask& mask, at::ScalarType dtype,
                              std::uint64_t seed) {
  return random_sequences({.batch = 2,
                           .heads = heads.heads,
                           .kv_heads = heads.kv_heads,
                           .head_dim = 8,
                           .value_dim = seed % 5 % 2 == 0 ? 5 : 6},
                          mask, dtype, seed);
}

/// Multi-head, grouped and multi-query attention; ranges of heads that cut a group, and ranges of
/// uneven size.
inline const std::vector<HeadCase>& head_cases() {
  static const std::vector<HeadCase> cases = {{2, 2, {{0, 2}}},         {3, 3, {{0, 1}, {1, 3}}},
                                              {6, 3, {{0, 3}, {3, 6}}}, {4, 2, {{0, 1}, {1, 4}}},
                                              {4, 1, {{0, 4}}},         {3, 1, {{0, 2}, {2, 3}}}};
  return cases;
}

}  // namespace armillary::kernel
