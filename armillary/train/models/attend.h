// attend.h: attention as the layers of a model call it. A model knows nothing of ranks: what
// attends is given to it.
//
// A layer begins a call, makes K, then V, then Q, and shows each as soon as it is there, so that
// what attends can send it on beside the next product.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

namespace armillary::train {

/// q_BLHD is [batch, tokens, heads, head_dim]; k_BLGD and v_BLGD have `kv_heads`.
struct QkvShape {
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  at::ScalarType dtype;
};

/// A function of q_BLHD, k_BLGD, v_BLGD, given as it is, or as one that begins its calls.
template <class Result>
class AttendTo {
 public:
  using Finish = std::function<Result(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

  /// `take_k`, then `take_v`, of values without a graph; then `finish` of q, k and v: the same
  /// values of k and v, in the same memory. A call that is dropped before has failed.
  struct Call {
    std::function<void(const at::Tensor& k_BLGD)> take_k;
    std::function<void(const at::Tensor& v_BLGD)> take_v;
    Finish finish;
  };
  using Begin = std::function<Call(const QkvShape&)>;

  AttendTo() = default;
  template <std::invocable<const at::Tensor&, const at::Tensor&, const at::Tensor&> Function>
  AttendTo(Function at_once)  // NOLINT: a function alone is enough
      : begin_([finish = Finish(std::move(at_once))](const QkvShape&) {
          return Call{[](const at::Tensor&) {}, [](const at::Tensor&) {}, finish};
        }) {}
  template <std::invocable<const QkvShape&> Function>
  AttendTo(Function begin)  // NOLINT: likewise
      : begin_(std::move(begin)) {}

  explicit operator bool() const { return begin_ != nullptr; }
  Call begin(const QkvShape& shape) const { return begin_(shape); }

 private:
  Begin begin_;
};

/// out_BLHD of softmax attention over the whole sequence, for this rank's q, k, v. Differentiable;
/// the same dtype in and out.
using Attend = AttendTo<at::Tensor>;

/// The same without a graph, and an Attend that gives that output again, differentiable, for the
/// same q, k, v, and attends to nothing.
struct KeptOutput {
  at::Tensor out_BLHD;
  Attend again;
};
using AttendAndKeep = AttendTo<KeptOutput>;

/// The attention of a model.
struct Attends {
  template <std::convertible_to<Attend> Function>
  Attends(Function attend, AttendAndKeep keep = {})  // NOLINT: a function alone is enough
      : attend(std::move(attend)), keep(std::move(keep)) {}
  Attend attend;
  AttendAndKeep keep;  ///< Required by Recompute::AttentionOutput.
};

}  // namespace armillary::train
