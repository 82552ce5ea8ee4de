// team_gain.h: training steps of StarTrail and WallFacer beside those of Ring: how much faster they
// are, and what they hold. Internal to validate.
//
// Ranks share one sequence, layers keep attention's output, gradients and optimizer are shared
// (ZeRO-2), as in both papers.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/predict/cost/model.h"

namespace armillary::validate {

/// Published shape of a model: its heads fill its hidden size.
struct PaperModel {
  const char* name;
  int layers;
  int heads;
  int head_dim;
  bool is_dit = false;
};
inline constexpr PaperModel kGpt3B{"GPT 3B", 12, 16, 256};
inline constexpr PaperModel kGpt7B{"GPT 7B", 32, 32, 128};
inline constexpr PaperModel kDit1B{"DiT 1B", 24, 24, 64, true};

cost::ModelCost cost(const PaperModel& model);

/// One model on a cluster: a sub-figure of WallFacer's figure 7, or a point of figure 9 or 10.
struct TeamRun {
  std::string cluster;  ///< sim::load_cluster() reads it.
  int world = 1;
  PaperModel model = kGpt3B;
  std::int64_t seq = 0;
};
/// "c2, 32 ranks, GPT 3B, 64K".
std::string name_of(const TeamRun& run);

/// Seconds of a step with teams of this size, in the faster placement; Ring for 1.
double team_seconds(const TeamRun& run, int team);

/// The best team size of 2 and 4, and the gain of its step over one of Ring.
struct TeamGain {
  int best = 2;
  double over_ring = 0;
};
TeamGain team_gain(const TeamRun& run);

/// Bytes of a step on the rank with most: model, optimizer, activations, and what attention of one
/// layer holds beside them, forward or backward: Q, K and V of the team, blocks on their way, sums.
double team_memory(const TeamRun& run, int team);

}  // namespace armillary::validate
