// estimate.h: memory, work and traffic of a training step, computed from a recipe without tensors.
//
//   Recipe --model_cost--> ModelCost: parameters, flops, bytes a token ---.
//   Data --parts(i)--> mask --attention_problem--> plans of step 1 -------'--> Estimate
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/model/recompute.h"
#include "armillary/predict/cost/step.h"
#include "armillary/train/data.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {

/// Traffic of one pass of attention in step 1, over all layers and microbatches.
struct PassTraffic {
  /// By rank; what one rank sends, others receive.
  std::vector<std::int64_t> sent_bytes_per_rank;
  int steps = 0;  ///< Steps of one layer's plan; the most of any microbatch.
};

/// Activation memory of a recomputation policy, and its work and traffic beyond policy `none`.
struct PolicyCost {
  cost::Recompute policy = cost::Recompute::None;
  /// For one microbatch on the rank with most tokens: activations kept from forward to backward,
  /// and what is held beside them, at the moment that needs most. The peak of a rank's tensors is
  /// within 5 % of the sum with the other parts of its memory (estimate_memory_test.cpp).
  std::int64_t activation_bytes = 0;
  /// Bytes that all layers keep of a token, in those of a layer's input: Y + 1 for Y layers that
  /// keep their input alone, 2 Y + 1 and log-sum-exps with attention's output.
  double kept_inputs = 0;
  double more_flops = 0;  ///< Floating point operations in step 1, over all ranks.
  /// Messages of attention that recomputation sends again.
  PassTraffic more_sent;
};

/// Estimate of one training step. Bytes and flops are those of step 1.
struct Estimate {
  cost::ModelCost cost;
  ChosenStrategy attention;
  /// The rank that needs most, without scratch of kernels and buffers of communicators.
  cost::StepMemory memory;
  PassTraffic forward;
  PassTraffic backward;
  std::vector<PolicyCost> policies;  ///< All policies, in the order of recompute_names.
  /// Bytes that a rank sends in a step to sum gradients and to gather parameters, each of its
  /// dtype, by the program of the step (plan/step/traffic.h).
  std::int64_t gradient_sent_bytes = 0;
  std::int64_t tensor_sent_bytes = 0;  ///< By a rank along tp, for inputs of its matrices.
  std::int64_t expert_sent_bytes = 0;  ///< By a rank along ep, for rows of its tokens; even routes.
  std::int64_t visible_pairs = 0;      ///< (query, key) pairs of one head in step 1.
};

/// Plans step 1, with every mask of its microbatches. Packed documents give each step other masks,
/// so other steps move somewhat more or less. Cost: makes the programs of all ranks, one at a time.
/// @throws InvalidArgument if the strategy cannot solve the problem (reason and nearest legal
/// choice), or as checked_parts.
Estimate estimate(const Recipe& recipe, const Data& data);

/// The same with other costs of the recipe's model, as those of another device.
Estimate estimate(const Recipe& recipe, const cost::ModelCost& cost, const Data& data);

/// A pass of a microbatch, on the rank that has most.
struct PassLoad {
  cost::Recompute policy = cost::Recompute::None;
  cost::AttentionBytes attention;
  double tokens = 0;  ///< In all sequences of the microbatch.
};

/// Memory of a step of a recipe on that rank, without the copy for a checkpoint: that of
/// estimate().
cost::StepMemory memory_of(const Recipe& recipe, const cost::ModelCost& cost, const PassLoad& load);

/// The estimate as several lines for a reader, and as one JSON object.
std::string describe(const Recipe& recipe, const Estimate& estimate);
nlohmann::json to_json(const Recipe& recipe, const Estimate& estimate);

}  // namespace armillary::train
