// dealt_attention.h: one attention dealt out over many kernel calls, as a plan does it. Tests only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/naive_attention.h"
#include "armillary/kernel/reference.h"

namespace armillary::kernel {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A kernel under test, by name: "reference", or an instruction set of the CPU kernel.
class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const cpu::Tiles* isa : cpu::all_isas()) {
      if (isa->name == GetParam() && !cpu::runs_here(*isa)) {
        GTEST_SKIP() << "[SKIP] this CPU has no " << GetParam();
      }
    }
  }
  const Kernel& kernel() const {
    return GetParam() == "reference" ? reference() : cpu_kernel(GetParam());
  }
  /// The CPU kernel hands fp64 on to the reference, which is tested there.
  std::vector<at::ScalarType> dtypes() const {
    if (GetParam() == "reference") return {at::kDouble, at::kFloat};
    return {at::kFloat, at::kBFloat16};
  }
  at::ScalarType dtype() const { return dtypes().front(); }
};

inline std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const cpu::Tiles* isa : cpu::all_isas()) names.emplace_back(isa->name);
  return names;
}

inline std::vector<std::string> kernel_names() {
  std::vector<std::string> names = isa_names();
  names.insert(names.begin(), "reference");
  return names;
}

/// Bounds of design.md section 6: only the order of sums differs from one softmax over all keys,
/// which costs some 10 to 50 roundings of 2^-53 or 2^-24 here. In bf16 weights, outputs and dS are
/// rounded by up to 2^-9 each, and what is left of terms that cancel (dP - delta, the sinks' sum
/// over rows) by more.
inline double tolerance(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x1p-5;
  return dtype == at::kDouble ? 1e-12 : 1e-5;
}

/// How one attention is dealt out over calls: each range of query heads and block of queries gets a
/// partial of its own, and attends the blocks of keys in the given order.
struct Deal {
  std::vector<plan::Runs> q_blocks;
  std::vector<plan::Runs> k_blocks;
  std::vector<plan::Interval> q_heads;
  bool all = false;       ///< By attend_all and attend_grad_all. Requires one block of keys.
  bool max_logit = true;  ///< Asked for. Kernels look at scores less often if it is not.
};

/// The same numbers as a view into the middle of a larger tensor full of NaN.
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

/// One block of queries for one range of heads: all its calls, forward and backward, added to
/// `results` (in accumulators, -inf of lse is 0 before).
inline void deal_block(const Kernel& kernel, const Sequences& x, const plan::Mask& mask,
                       const Deal& deal, const plan::Runs& q_runs, plan::Interval heads,
                       const Score& score, const at::Tensor& sinks_H, Results& results) {
  const std::int64_t group = x.q_BSHD.size(2) / x.k_BSGD.size(2);
  const plan::Interval kv_heads{heads.begin / group, (heads.end + group - 1) / group};
  const auto pairs = [&](const plan::Runs& k_runs) {
    return Pairs{
        .q_runs = q_runs,
        .k_runs = k_runs,
        .mask = &mask,
        .heads = {
            .first_q_head = heads.begin, .first_kv_head = kv_heads.begin, .group_size = group}};
  };
  const auto inputs = [&](const plan::Runs& k_runs) {
    return Inputs{.q_BLHD = part(x.q_BSHD, q_runs, heads),
                  .k_BLGD = part(x.k_BSGD, k_runs, kv_heads),
                  .v_BLGE = part(x.v_BSGE, k_runs, kv_heads),
                  .score = score};
  };
  const at::Tensor dout = part(x.dout_BSHE, q_runs, heads);
  const auto acc = at::TensorOptions(accumulator(dout.scalar_type()));

  at::Tensor max_H;
  if (deal.max_logit) max_H = results.max_logit_H.slice(0, heads.begin, heads.end);
  at::Tensor sinks;
  if (sinks_H.defined()) sinks = sinks_H.slice(0, heads.begin, heads.end).to(acc.dtype());
  at::Tensor out = in_slot(at::full_like(dout, kNan));
  at::Tensor lse = in_slot(at::full(dout.sizes().slice(0, 3), kNan, acc));
  if (deal.all) {
    Result result{out, lse, max_H};
    kernel.attend_all(pairs(deal.k_blocks[0]), inputs(deal.k_blocks[0]), sinks, result);
  } else {
    const bool fresh = deal.k_blocks.size() > 1;  // else cleared
    Partial carry{in_slot(at::full(out.sizes(), kNan, acc)), in_slot(at::full_like(lse, kNan)),
                  max_H, fresh};
    if (!fresh) clear(carry);
    for (const plan::Runs& k_runs : deal.k_blocks)
      kernel.attend(pairs(k_runs), inputs(k_runs), carry);
    finish(carry, out, lse, sinks);
  }
  at::Tensor delta_BLH = in_slot(at::zeros_like(lse));
  delta(dout, out, delta_BLH);
  at::Tensor dsinks = results.dsinks_H.slice(0, heads.begin, heads.end);
  if (sinks.defined()) sinks_grad(sinks, lse, delta_BLH, dsinks);
  add_part(results.out_BSHE, q_runs, heads, out.to(acc.dtype()));
  add_part(results.lse_BSH, q_runs, heads, lse);

  for (std::size_t i = 0; i < deal.k_blocks.size(); ++i) {
    const plan::Runs& k_runs = deal.k_blocks[i];
    const Inputs in = inputs(k_runs);
    const bool dq_fresh = i % 2 == 1;
    const bool dkv_fresh = i % 3 == 1;
    const auto grad_of = [&](const at::Tensor& x, bool fresh) {
      if (deal.all) return in_slot(at::full_like(x, kNan));
      return in_slot(at::full(x.sizes(), fresh ? kNan : 0.0, acc));
    };
    InputGrads grads{grad_of(in.q_BLHD, dq_fresh), grad_of(in.k_BLGD, dkv_fresh),
                     grad_of(in.v_BLGE, dkv_fresh), dq_fresh, dkv_fresh};
    if (deal.all) {
      kernel.attend_grad_all(pairs(k_runs), in, {dout, lse, delta_BLH}, grads);
    } else {
      kernel.attend_grad(pairs(k_runs), in, {dout, lse, delta_BLH}, grads);
    }
    add_part(results.dq_BSHD, q_runs, heads, grads.dq_BLHD.to(acc.dtype()));
    add_part(results.dk_BSGD, k_runs, kv_heads, grads.dk_BLGD.to(acc.dtype()));
    add_part(results.dv_BSGE, k_runs, kv_heads, grads.dv_BLGE.to(acc.dtype()));
  }
}

inline Results dealt_attention(const Kernel& kernel, const Sequences& x, const plan::Mask& mask,
                               const Deal& deal, const Score& score,
                               const at::Tensor& sinks_H = {}) {
  const auto acc = at::TensorOptions(accumulator(x.q_BSHD.scalar_type()));
  Results results{at::zeros(x.dout_BSHE.sizes(), acc),
                  at::zeros(x.dout_BSHE.sizes().slice(0, 3), acc),
                  at::zeros(x.q_BSHD.sizes(), acc),
                  at::zeros(x.k_BSGD.sizes(), acc),
                  at::zeros(x.v_BSGE.sizes(), acc),
                  at::zeros({x.q_BSHD.size(2)}, at::kDouble),
                  at::full({x.q_BSHD.size(2)}, -std::numeric_limits<double>::infinity(), acc)};
  for (const plan::Interval heads : deal.q_heads) {
    for (const plan::Runs& q_runs : deal.q_blocks) {
      deal_block(kernel, x, mask, deal, q_runs, heads, score, sinks_H, results);
    }
  }
  return results;
}

inline Results dealt_attention(const Kernel& kernel, const Sequences& x, const plan::Mask& mask,
                               const Deal& deal, double scale) {
  return dealt_attention(kernel, x, mask, deal, Score{.scale = scale});
}

/// Calls visit(name, given, required) for output, log-sum-exp and every gradient.
template <class Visit>
void for_each_result(const Results& given, const Results& required, Visit visit) {
  visit("out", given.out_BSHE, required.out_BSHE);
  visit("lse", given.lse_BSH, required.lse_BSH);
  visit("dq", given.dq_BSHD, required.dq_BSHD);
  visit("dk", given.dk_BSGD, required.dk_BSGD);
  visit("dv", given.dv_BSGE, required.dv_BSGE);
  visit("dsinks", given.dsinks_H, required.dsinks_H);
  visit("max_logit", given.max_logit_H, required.max_logit_H);
}

inline void expect_near(const Results& given, const Results& required, double bound,
                        const std::string& where) {
  for_each_result(given, required, [&](const char* name, const at::Tensor& a, const at::Tensor& b) {
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

/// Whole, pieces, zigzag, stripes, wide stripes; keys in another order and cut than queries.
/// Requires length > 12.
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

/// Of two batch entries. The value dim is 5 or 6, in a rhythm that dtypes and heads do not have: an
/// odd one has no words of two bf16.
inline Sequences sequences_of(const HeadCase& heads, const plan::Mask& mask, at::ScalarType dtype,
                              std::uint64_t seed) {
  return random_sequences({.batch = 2,
                           .heads = heads.heads,
                           .kv_heads = heads.kv_heads,
                           .head_dim = 8,
                           .value_dim = seed % 5 % 2 == 0 ? 5 : 6},
                          mask, dtype, seed);
}

// Multi-head, grouped and multi-query attention; ranges that cut a group, and ranges of uneven
// size.
inline const std::vector<HeadCase>& head_cases() {
  static const std::vector<HeadCase> cases = {{2, 2, {{0, 2}}},         {3, 3, {{0, 1}, {1, 3}}},
                                              {6, 3, {{0, 3}, {3, 6}}}, {4, 2, {{0, 1}, {1, 4}}},
                                              {4, 1, {{0, 4}}},         {3, 1, {{0, 2}, {2, 3}}}};
  return cases;
}

}  // namespace armillary::kernel
