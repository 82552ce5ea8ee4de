// advise.h: a mesh for a step of training, prefill or denoising: dp, cp as u x Rq x Rk, tp, pp, the
// stage of ZeRO, and recomputation.
//
//   model, cluster, tokens --every legal mesh--> attention of its cp ranks (estimated)
//                                           '--> time and memory by terms (predict/cost/step.h) -->
//                                           the fastest
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "armillary/plan/mask/mask.h"
#include "armillary/predict/cost/step.h"
#include "armillary/predict/tune/candidate.h"

namespace armillary::tune {

struct AdviceQuestion {
  std::string model;  ///< The name of its model.
  cost::Step step;
  sim::Cluster cluster;
  int devices = 0;  ///< 0: all of the cluster.
  /// Sequences of a replica in one pass; 0: 1 to 8 are tried, more than 1 without a pipeline.
  std::int64_t microbatch = 1;
  /// The mask of a sequence of so many tokens.
  std::function<plan::Mask(std::int64_t seq)> mask;
  /// The same for all meshes (cost::Parallelism).
  bool reshard_after_forward = true;
  /// Throws InvalidArgument for a mesh that is to be left out. Empty: none is.
  std::function<void(const cost::Parallelism&)> check = {};
};

/// The cut of heads, queries and keys that a strategy makes: 4 x 2 x 1.
struct Cut {
  int u = 1;
  int rq = 1;
  int rk = 1;
};
Cut cut_of(const plan::Strategy& strategy, int world);

/// A mesh with its attention and costs.
struct Advised {
  cost::Parallelism parallelism;
  Candidate attention;
  cost::StepTime time;
  cost::StepMemory memory;
  /// The longest sequence with which the mesh fits, as memory grows with the tokens.
  std::int64_t longest_seq = 0;
  bool fits = false;
};
/// `dp 2, cp 8 = 4 x 2 x 1, tp 1, pp 1, ZeRO-1, recompute attention_output, 4 sequences a pass`.
std::string to_string(const Advised& advised);

struct Advice {
  std::vector<Advised> meshes;  ///< Those that fit, the fastest first.
  Advised longest;              ///< The mesh that fits the longest sequence, however slow.
  /// Reasons: for each part of the best mesh, what the best mesh without it would take.
  std::vector<std::string> reasons;
};

/// @throws InvalidArgument for a model, cluster or number of devices that cannot be used, the
/// reason for the first mesh that was left out if all were, or "does not fit: needs X GiB, has Y,
/// the longest sequence that fits is Z", X of the mesh that needs least. Cost: estimates of some
/// ten candidates for each cp, tp and number of sequences in a pass.
Advice advise(const AdviceQuestion& question);

/// The advice as one JSON object: `meshes`, the fastest first, each with its axes, `time_s` and
/// `memory_bytes` by term, `longest_seq`; `longest`; `reasons`.
std::string to_json(const Advice& advice);

}  // namespace armillary::tune
