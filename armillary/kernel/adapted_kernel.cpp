// Runs the native calls of some pairs, for ranges of heads that the library takes.
//
// The rows of a call are views of the caller's tensors, or flipped copies if the library must read
// them backwards. Outputs that the library cannot merge or add itself go to temporary memory, and
// are merged or added afterwards.
#include "armillary/kernel/adapted_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace armillary::kernel {
namespace {

/// Calls that are given to the library at once.
using Together = std::vector<NativeCall>;

struct PreparedCalls : Prepared {
  std::vector<Together> calls;
};

/// The calls of these pairs: prepared ones, or made now.
std::shared_ptr<const PreparedCalls> calls_of(const Pairs& pairs, const Abilities& can) {
  if (pairs.prepared) return std::static_pointer_cast<const PreparedCalls>(pairs.prepared);
  const auto result = std::make_shared<PreparedCalls>();
  result->calls = native_calls(pairs, can);
  return result;
}

/// Rows of x in the order of the call: a view, or a flipped copy if the call reads backwards.
at::Tensor rows_of(const at::Tensor& x_BLHX, const NativeRows& rows) {
  if (rows.step < 0) {
    const std::int64_t last = rows.first + (rows.count - 1) * rows.step;
    return rows_of(x_BLHX, {last, rows.count, -rows.step}).flip(1);
  }
  return x_BLHX.slice(1, rows.first, rows.first + (rows.count - 1) * rows.step + 1, rows.step);
}

/// Brings the rows of a result into memory order: returns those rows of `x` as a view, and `y`, the
/// result in the order of the call, flipped if the call read backwards.
std::pair<at::Tensor, at::Tensor> in_order(const at::Tensor& x_BLHX, const NativeRows& rows,
                                           const at::Tensor& y) {
  if (rows.step > 0) return {rows_of(x_BLHX, rows), y};
  const std::int64_t last = rows.first + (rows.count - 1) * rows.step;
  return {rows_of(x_BLHX, {last, rows.count, -rows.step}), y.flip(1)};
}

/// A range of query heads and the KV heads that they read, each read by equally many.
struct NativeHeads {
  plan::Interval q;
  plan::Interval kv;
};

/// Head ranges of native calls: all heads at once if every KV head has the same number of query
/// heads, else one KV head at a time.
std::vector<NativeHeads> heads_of(const HeadMap& map, std::int64_t heads, std::int64_t kv_heads) {
  std::vector<NativeHeads> each;
  bool even = true;
  for (std::int64_t g = 0; g < kv_heads; ++g) {
    const plan::Interval q = map.q_heads_of(g, heads);
    if (q.empty()) continue;
    each.push_back({q, {g, g + 1}});
    even = even && q.end - q.begin == each.front().q.end - each.front().q.begin;
  }
  if (each.size() < 2 || !even) return each;
  return {{{each.front().q.begin, each.back().q.end}, {each.front().kv.begin, each.back().kv.end}}};
}

at::Tensor of(const at::Tensor& x_BLHX, plan::Interval heads) {
  return x_BLHX.slice(2, heads.begin, heads.end);
}

/// The inputs of some heads. The score is plain, so it is only a scale.
Inputs part_of(const Inputs& inputs, const NativeHeads& heads) {
  return {of(inputs.q_BLHD, heads.q),
          of(inputs.k_BLGD, heads.kv),
          of(inputs.v_BLGE, heads.kv),
          {.scale = inputs.score.scale}};
}

/// The rows of each call.
std::vector<NativeAttention::Part> parts_of(const Together& calls, const Inputs& inputs) {
  std::vector<NativeAttention::Part> parts;
  parts.reserve(calls.size());
  for (const NativeCall& call : calls) {
    parts.push_back({.mask = call.mask,
                     .window = call.window,
                     .q_BLHD = rows_of(inputs.q_BLHD, call.q),
                     .k_BLGD = rows_of(inputs.k_BLGD, call.k),
                     .v_BLGE = rows_of(inputs.v_BLGE, call.k)});
  }
  return parts;
}

/// Stands in for the output in backward: dout * delta / |dout|^2, whose rowsum with dout is delta.
/// dout is scaled by its largest element first, so squares do not underflow. A row of dout that is
/// 0 has delta 0, so it gets 0.
at::Tensor stand_in_of(const at::Tensor& dout_BLHE, const at::Tensor& delta_BLH) {
  const at::Tensor dout = dout_BLHE.to(delta_BLH.scalar_type());
  const at::Tensor largest = dout.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor unit = dout / largest;
  const at::Tensor out =
      unit * (delta_BLH.unsqueeze(-1) / (largest * unit.square().sum(-1, /*keepdim=*/true)));
  return out.masked_fill(largest == 0, 0).to(dout_BLHE.scalar_type());
}

/// Options of temporary memory for a result: the input dtype if the library rounds results, else
/// the accumulator. `sums`: the library merges or adds into it, and then does not round.
at::TensorOptions own_memory(const Abilities& can, bool sums, const at::Tensor& input) {
  const at::ScalarType dtype = input.scalar_type();
  return at::TensorOptions(can.rounds && !sums ? dtype : accumulator(dtype)).device(input.device());
}

/// Forward of some calls for some heads, merged into `carry`.
void attend_heads(const NativeAttention& native, const Together& calls, const Inputs& inputs,
                  const Partial& carry) {
  // Memory of each result: rows of the carry, or a partial of its own.
  const Abilities can = native.abilities();
  const std::vector<NativeAttention::Part> parts = parts_of(calls, inputs);
  std::vector<Partial> partials;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const at::Tensor& q = parts[i].q_BLHD;
    if (can.carries && calls[i].q.step > 0) {
      partials.push_back({rows_of(carry.out_BLHE, calls[i].q), rows_of(carry.lse_BLH, calls[i].q)});
      continue;
    }
    const auto sizes = q.sizes();
    Partial own{at::empty({sizes[0], sizes[1], sizes[2], parts[i].v_BLGE.size(3)},
                          own_memory(can, can.carries, q)),
                at::empty(sizes.slice(0, 3), carry.lse_BLH.options())};
    if (can.carries) clear(own);
    partials.push_back(own);
  }
  native.forward(parts, inputs.score.scale, partials);
  // Partials of their own are merged.
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (can.carries && calls[i].q.step > 0) continue;
    const auto [out, own_out] = in_order(carry.out_BLHE, calls[i].q, partials[i].out_BLHE);
    const auto [lse, own_lse] = in_order(carry.lse_BLH, calls[i].q, partials[i].lse_BLH);
    Partial rows{out, lse};
    merge(rows, {own_out, own_lse});
  }
}

/// Memory for the gradient of some rows of one tensor: those rows of the accumulator, if the
/// library adds to them in place, else temporary memory that add_to_sum() adds.
struct NativeGradRows {
  const at::Tensor& sum;
  const NativeRows& rows;
  at::Tensor memory{};
  bool in_place = false;

  NativeGradRows(const at::Tensor& sum_BLHX, const NativeRows& of, const at::Tensor& x,
                 const Abilities& can)
      : sum(sum_BLHX), rows(of), in_place(can.adds_gradients && of.step > 0) {
    if (in_place) {
      memory = rows_of(sum, rows);
    } else {
      memory = at::zeros(x.sizes(), own_memory(can, can.adds_gradients, x));
    }
  }
  void add_to_sum() const {
    if (in_place) return;
    const auto [to, part] = in_order(sum, rows, memory);
    kernel::add(to, part);
  }
};

/// Backward of some calls for some heads, added to the accumulators `sums`.
void attend_grad_heads(const NativeAttention& native, const Together& calls, const Inputs& inputs,
                       const NativeAttention::Upstream& upstream, const InputGrads& sums) {
  const Abilities can = native.abilities();
  const std::vector<NativeAttention::Part> parts = parts_of(calls, inputs);
  // Upstream rows and memory of the gradients, call by call.
  std::vector<NativeAttention::Upstream> above;
  std::vector<NativeGradRows> gradients;
  std::vector<InputGrads> grads;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto queries = [&](const at::Tensor& x) {
      return x.defined() ? rows_of(x, calls[i].q) : at::Tensor();
    };
    above.push_back({queries(upstream.dout_BLHE), queries(upstream.lse_BLH),
                     queries(upstream.delta_BLH), queries(upstream.out_BLHE)});
    const std::size_t first = gradients.size();
    gradients.emplace_back(sums.dq_BLHD, calls[i].q, parts[i].q_BLHD, can);
    gradients.emplace_back(sums.dk_BLGD, calls[i].k, parts[i].k_BLGD, can);
    gradients.emplace_back(sums.dv_BLGE, calls[i].k, parts[i].v_BLGE, can);
    grads.push_back(
        {gradients[first].memory, gradients[first + 1].memory, gradients[first + 2].memory});
  }
  native.backward(parts, inputs.score.scale, above, grads);
  for (const NativeGradRows& rows : gradients) rows.add_to_sum();
}

}  // namespace

std::shared_ptr<const Prepared> AdaptedKernel::run_prepare(const Pairs& pairs) const {
  return calls_of(pairs, native_.abilities());
}

void AdaptedKernel::run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const {
  clear_init(carry);
  const auto calls = calls_of(pairs, native_.abilities());
  for (const NativeHeads& heads :
       heads_of(pairs.heads, inputs.q_BLHD.size(2), inputs.k_BLGD.size(2))) {
    const Partial part{of(carry.out_BLHE, heads.q), of(carry.lse_BLH, heads.q)};
    for (const Together& together : calls->calls) {
      attend_heads(native_, together, part_of(inputs, heads), part);
    }
  }
}

void AdaptedKernel::run_attend_grad(const Pairs& pairs, const Inputs& inputs,
                                    const OutputGrads& upstream, InputGrads& grads) const {
  clear_init(grads);
  const Abilities can = native_.abilities();
  const auto calls = calls_of(pairs, can);
  // The library reads either delta or an output.
  NativeAttention::Upstream above{.dout_BLHE = upstream.dout_BLHE, .lse_BLH = upstream.lse_BLH};
  (can.takes_delta ? above.delta_BLH : above.out_BLHE) =
      can.takes_delta ? upstream.delta_BLH : stand_in_of(upstream.dout_BLHE, upstream.delta_BLH);
  for (const NativeHeads& heads :
       heads_of(pairs.heads, inputs.q_BLHD.size(2), inputs.k_BLGD.size(2))) {
    const auto q_heads = [&](const at::Tensor& x) {
      return x.defined() ? of(x, heads.q) : at::Tensor();
    };
    const NativeAttention::Upstream part{q_heads(above.dout_BLHE), q_heads(above.lse_BLH),
                                         q_heads(above.delta_BLH), q_heads(above.out_BLHE)};
    const InputGrads sums{of(grads.dq_BLHD, heads.q), of(grads.dk_BLGD, heads.kv),
                          of(grads.dv_BLGE, heads.kv)};
    for (const Together& together : calls->calls) {
      attend_grad_heads(native_, together, part_of(inputs, heads), part, sums);
    }
  }
}

}  // namespace armillary::kernel
