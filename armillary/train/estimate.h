// estimate.h: what a recipe would take, from its plans and sizes alone: no tensors, no training.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/plan/problem.h"
#include "armillary/train/data.h"
#include "armillary/train/models/model.h"
#include "armillary/train/models/recompute.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// The attention problem of one sequence in every layer: of any model, or of the recipe's.
/// @throws InvalidArgument for a mask or layout that is not legal.
plan::Problem attention_problem(const Recipe& recipe, const ModelAttention& shape,
                                const plan::Mask& mask);
plan::Problem attention_problem(const Recipe& recipe, const plan::Mask& mask);

/// What the recipe's model takes.
ModelCost model_cost(const Recipe& recipe);

/// The recipe's model with the parameters of training.seed.
std::unique_ptr<Model> make_model(const Recipe& recipe);

/// Memory of the rank that needs most. All bytes but `activations` are exact counts.
struct MemoryBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t attention = 0;    ///< Slots of one layer's plan, forward and backward.
  std::int64_t activations = 0;  ///< About; of the recipe's policy, as in PolicyCost.
  std::int64_t total() const;
};

/// One pass of attention in step 1: all layers, all sequences.
struct PassTraffic {
  std::vector<std::int64_t> sent_bytes_per_rank;
  int steps = 0;  ///< Of the plan of one layer; the most of all sequences.
};

/// What a policy of recomputation holds, and what it does and sends beyond `none`.
struct PolicyCost {
  Recompute policy = Recompute::None;
  /// Of one sequence on the rank with most tokens: what is kept from forward to backward, and the
  /// most that loss or the backward of one layer holds beside it. Within a quarter of what a run
  /// allocates (estimate_test.cpp).
  std::int64_t activation_bytes = 0;
  double more_flops = 0;  ///< In step 1, over all ranks.
  PassTraffic more_sent;
};

struct Estimate {
  ModelCost cost;
  MemoryBytes memory;
  PassTraffic forward;
  PassTraffic backward;
  std::vector<PolicyCost> policies;      ///< All, in the order of recompute_names.
  std::int64_t gradient_sent_bytes = 0;  ///< Per rank and step, to sum the gradients.
  std::int64_t visible_pairs = 0;        ///< (query, key) pairs of one head in step 1.
};

/// Plans step 1. With packed documents other steps move somewhat more or less.
/// @throws InvalidArgument if the strategy cannot solve the problem (reason and nearest legal
/// choice).
Estimate estimate(const Recipe& recipe, const Data& data);

/// For a reader, several lines; and as one JSON object.
std::string describe(const Recipe& recipe, const Estimate& estimate);
nlohmann::json to_json(const Recipe& recipe, const Estimate& estimate);

}  // namespace armillary::train
