// inference.h: a prompt that is read over ranks and then continued: time to first token, time per
// token, bytes of a rank, and the longest prompt that fits.
//
//   model, prompt, cp, tp --attention of a layer, simulated--> prefill (step.h) --.
//                         '---------------------> a step of decode (decode.h) -----'--> costs
//
// Ranks are ordered as in step.h: tp on neighbouring devices, then cp. Replicas along dp read other
// prompts and change nothing here.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/decode.h"
#include "armillary/predict/cost/step.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::cost {

/// Prompts of one length that are read in one pass, causally, and continued token by token.
struct Inference {
  ModelCost model;
  std::int64_t prompt = 0;     ///< Tokens of a sequence.
  std::int64_t sequences = 1;  ///< All of them on all ranks.
  int cp = 1;                  ///< Ranks that share the tokens of a sequence.
  int tp = 1;                  ///< Ranks that share heads and matrices.
  plan::Strategy strategy;     ///< Attention of the prefill.
  plan::Layout layout;
  plan::Dtype dtype = plan::Dtype::Bf16;  ///< Q, K and V.
  double parameter_bytes = 2;             ///< Bytes of one parameter.
};

struct InferenceCost {
  StepTime prefill;        ///< total() is the time to first token.
  DecodeTime decode;       ///< total() is the time of the token behind the prompt.
  StepMemory memory;       ///< Prefill, on the rank that needs most; the cache is in `activations`.
  double cache_bytes = 0;  ///< K and V of the prompt, on the rank with most.
  /// The longest prompt that fits, read in one pass; the slots of attention grow with it.
  std::int64_t longest_prompt = 0;
  /// The longest context of which the cache fits beside the parameters: what shorter passes come
  /// near to.
  std::int64_t longest_context = 0;
};

/// Simulates the forward pass of one layer's attention; all else is terms. Nothing is checked about
/// memory: that is check_inference_fits(). Cost: that of sim::simulate().
/// @throws InvalidArgument for a prompt, sequences or ranks below 1, a tp that divides neither
/// the query heads nor a node, or cannot share the KV heads (with the nearest), layout balanced, a
/// model with experts, more ranks than devices, a device without a rate of products or a kernel
/// curve, and as plan::check_legal.
InferenceCost inference_cost(const Inference& inference, const sim::Cluster& cluster);

/// Does nothing if the prompt fits. @throws InvalidArgument: `WHERE: .. does not fit: needs X GiB,
/// has Y, the longest prompt that fits is Z`.
void check_inference_fits(const std::string& where, const Inference& inference,
                          const InferenceCost& cost, const sim::Cluster& cluster);

/// One JSON object: `prompt`, `cp`, `tp`, `time_to_first_token_s` and `time_per_token_s`, each with
/// its terms, `cache_bytes`, `memory_bytes`, `longest_prompt` and `longest_context`.
std::string to_json(const Inference& inference, const InferenceCost& cost);

}  // namespace armillary::cost
