// attend.h: attention as the layers of a model call it. A model knows nothing of ranks: its
// attention is a function that the trainer passes in (train/attend_over_ranks.h), or a test.
//
//   shape --begin--> feed k --> feed v --> finish(q, k, v) --> out_BLHD
//
// A layer begins a call, then computes K, V and Q in this order and hands over each as soon as it
// is there, so the function can send it on while the layer computes the next product.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

namespace armillary::model {

/// Shape of a call on this rank: q_BLHD is [batch, tokens, heads, head_dim]; k_BLGD and v_BLGD are
/// the same with `kv_heads`. It is known before the first product is computed.
struct QkvShape {
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  at::ScalarType dtype;
};

/// A function of q_BLHD, k_BLGD, v_BLGD that gives an Output. It is made from a plain function of
/// the three, or from one that begins calls and takes the three one by one.
template <class Output>
class AttentionFunction {
 public:
  using Finish = std::function<Output(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

  /// A call that has begun. The caller gives the values of k to `take_k`, then those of v to
  /// `take_v`, both without a graph, then calls `finish` with q, k and v, where k and v lie in the
  /// memory that was taken. A call that is dropped before `finish` counts as failed.
  struct InProgress {
    std::function<void(const at::Tensor& k_BLGD)> take_k;
    std::function<void(const at::Tensor& v_BLGD)> take_v;
    Finish finish;
  };
  using Begin = std::function<InProgress(const QkvShape&)>;

  /// No function: false as a bool, and must not be called.
  AttentionFunction() = default;
  /// From a plain function: its calls ignore what is taken and do all work in `finish`.
  template <std::invocable<const at::Tensor&, const at::Tensor&, const at::Tensor&> Function>
  AttentionFunction(Function at_once)  // NOLINT: implicit, so that a lambda can be passed
      : begin_([finish = Finish(std::move(at_once))](const QkvShape&) {
          return InProgress{[](const at::Tensor&) {}, [](const at::Tensor&) {}, finish};
        }) {}
  /// From a function that begins calls.
  template <std::invocable<const QkvShape&> Function>
  AttentionFunction(Function begin)  // NOLINT: likewise
      : begin_(std::move(begin)) {}

  explicit operator bool() const { return begin_ != nullptr; }  ///< False if it has no function.
  /// Begins a call. Over ranks it is collective: all ranks begin the same calls in the same order.
  InProgress begin(const QkvShape& shape) const { return begin_(shape); }

 private:
  Begin begin_;
};

/// Gives out_BLHD: softmax attention of this rank's queries over the whole sequence.
/// Differentiable; the output has the dtype of the inputs.
using Attend = AttentionFunction<at::Tensor>;

/// Output of a layer that will be recomputed in backward (recompute.h), without a graph.
struct KeptOutput {
  at::Tensor out_BLHD;
  /// Gives out_BLHD again for the same q, k, v, now differentiable, and attends to nothing.
  Attend replay;
};
using AttendAndKeep = AttentionFunction<KeptOutput>;

/// The attention of a model in both forms.
struct Attends {
  template <std::convertible_to<Attend> Function>
  Attends(Function attend, AttendAndKeep keep = {})  // NOLINT: implicit, likewise
      : attend(std::move(attend)), keep(std::move(keep)) {}
  Attend attend;
  AttendAndKeep keep;  ///< Required by Recompute::AttentionOutput.
};

}  // namespace armillary::model
