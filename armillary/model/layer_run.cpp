#include "armillary/model/layer_run.h"

#include <memory>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::model {
namespace {

/// The output of a layer that keeps attention's output alone: the first run of the layer leaves the
/// replay of its attention, and the second run calls it instead of attention.
at::Tensor run_keeping_attention(const AttendingLayer& layer, const at::Tensor& x,
                                 const AttendAndKeep& keep) {
  ARMILLARY_CHECK(keep);
  const auto replay = std::make_shared<Attend>();
  const Attend first = [keep, replay](const QkvShape& shape) {
    const AttendAndKeep::InProgress call = keep.begin(shape);
    const auto finish = [finish = call.finish, replay](const at::Tensor& q_BLHD,
                                                       const at::Tensor& k_BLGD,
                                                       const at::Tensor& v_BLGD) {
      KeptOutput output = finish(q_BLHD, k_BLGD, v_BLGD);
      *replay = std::move(output.replay);
      return output.out_BLHD;
    };
    return Attend::InProgress{call.take_k, call.take_v, finish};
  };
  // Begins the replay that the first run left.
  const Attend again = [replay](const QkvShape& shape) { return replay->begin(shape); };
  const auto with = [run = layer.run](const Attend& attend) {
    return [run, attend](const at::Tensor& input) { return run(input, attend); };
  };
  return recomputed(x, layer.parameters, with(first), with(again));
}

}  // namespace

at::Tensor run_layer_under(cost::Recompute policy, const AttendingLayer& layer, const at::Tensor& x,
                           const Attends& attends) {
  switch (policy) {
    case cost::Recompute::None:
      return layer.run(x, attends.attend);
    case cost::Recompute::Full: {
      const Layer again = [run = layer.run, attend = attends.attend](const at::Tensor& input) {
        return run(input, attend);
      };
      return recomputed(x, layer.parameters, again, again);
    }
    case cost::Recompute::AttentionOutput:
      break;
  }
  return run_keeping_attention(layer, x, attends.keep);
}

}  // namespace armillary::model
