// estimate.h: memory, work and traffic of a training step, computed from a recipe without tensors.
//
//   Recipe --model_cost--> ModelCost: parameters, flops, bytes a token ---.
//   Data --at(i)--> mask --attention_problem--> plans of step 1 ----------'--> Estimate
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/plan/problem.h"
#include "armillary/plan/strategy.h"
#include "armillary/train/data.h"
#include "armillary/train/models/model.h"
#include "armillary/train/models/recompute.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// The attention problem of one sequence, the same in every layer, for attention of this shape; for
/// the recipe's own model if no shape is given.
/// @throws InvalidArgument for a mask or layout that is not legal.
plan::Problem attention_problem(const Recipe& recipe, const ModelAttention& shape,
                                const plan::Mask& mask);
plan::Problem attention_problem(const Recipe& recipe, const plan::Mask& mask);

/// Cost of the recipe's model; makes no model.
ModelCost model_cost(const Recipe& recipe);

/// The recipe's model, its parameters drawn from training.seed.
std::unique_ptr<Model> make_model(const Recipe& recipe);

/// Memory of the rank that needs most, in bytes. All but `activations` and `checkpoint` are exact
/// counts.
struct MemoryBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t attention = 0;    ///< Slots of one layer's plan; the larger of the two passes.
  std::int64_t activations = 0;  ///< Approximate; PolicyCost of the recipe's policy.
  /// Copy of the rank's share of a checkpoint, in whole tensors; 0 unless checkpoint.enable.
  std::int64_t checkpoint = 0;
  /// Sum of the six.
  std::int64_t total() const;
};

/// Traffic of one pass of attention in step 1, over all layers and sequences.
struct PassTraffic {
  /// By rank; what one rank sends, others receive.
  std::vector<std::int64_t> sent_bytes_per_rank;
  int steps = 0;  ///< Steps of one layer's plan; the most of any sequence.
};

/// Activation memory of a recomputation policy, and its work and traffic beyond policy `none`.
struct PolicyCost {
  Recompute policy = Recompute::None;
  /// For one sequence on the rank with most tokens: activations kept from forward to backward, and
  /// the most that the loss or the backward of one layer holds beside them. Within a quarter of
  /// the allocations of a run (estimate_test.cpp).
  std::int64_t activation_bytes = 0;
  double more_flops = 0;  ///< Floating point operations in step 1, over all ranks.
  /// Messages of attention that recomputation sends again.
  PassTraffic more_sent;
};

/// The strategy of all steps of a recipe.
struct ChosenStrategy {
  plan::Strategy strategy;
  std::string reason;  ///< The line of tune/automatic.h if the recipe says `auto`; else empty.
};
/// The choice for attention of this shape on `world` ranks. Documents give each step other masks;
/// it is made for one document as long as a sequence. This process alone chooses.
/// @throws as tune::choose and plan::parse_strategy.
ChosenStrategy chosen_strategy(const Recipe& recipe, const ModelAttention& shape, int world);

/// The same for all ranks of a group, with the choice of rank 0. Collective.
ChosenStrategy chosen_strategy(const Recipe& recipe, const ModelAttention& shape,
                               comm::Communicator& comm);

/// Estimate of one training step. Bytes and flops are those of step 1.
struct Estimate {
  ModelCost cost;
  ChosenStrategy attention;
  MemoryBytes memory;
  PassTraffic forward;
  PassTraffic backward;
  std::vector<PolicyCost> policies;  ///< All policies, in the order of recompute_names.
  /// Bytes that each rank sends in a step to sum the gradients: 2 (P - 1) / P of their size.
  std::int64_t gradient_sent_bytes = 0;
  std::int64_t visible_pairs = 0;  ///< (query, key) pairs of one head in step 1.
};

/// Plans step 1, with every mask of its sequences. Packed documents give each step other masks, so
/// other steps move somewhat more or less. Cost: makes the programs of all ranks, one at a time.
/// @throws InvalidArgument if the strategy cannot solve the problem (reason and nearest legal
/// choice), or as checked_sequence.
Estimate estimate(const Recipe& recipe, const Data& data);

/// The same for a model that no recipe can name, by its Model::cost().
Estimate estimate(const Recipe& recipe, const ModelCost& cost, const Data& data);

/// The estimate as several lines for a reader, and as one JSON object.
std::string describe(const Recipe& recipe, const Estimate& estimate);
nlohmann::json to_json(const Recipe& recipe, const Estimate& estimate);

}  // namespace armillary::train
