// peak.h: the moment of a training step at which a rank holds most.
//
//   ModelCost: what layers keep, moments of each unit --.
//   whole values and gradients of units (ZeRO) ----------'-- for each unit --largest--> StepPeak
//
// Forward keeps the activations of all layers and ends with the loss. Backward goes from the last
// unit to the first, and frees those of a layer with it.
#pragma once

#include "armillary/predict/cost/model.h"

namespace armillary::cost {

/// A pass on one rank.
struct PassOnRank {
  Recompute policy = Recompute::None;
  double tokens = 0;          ///< In this pass; along tp all that the ranks share.
  double sequences = 0;       ///< Those of these tokens.
  double waiting_tokens = 0;  ///< In other passes, whose activations wait for their backward.
  int tp = 1;
  /// Bytes of attention in this pass beyond TokenBytes: of a layer that keeps all that backward
  /// needs, and of one under the policy.
  double attention_layer = 0;
  double attention_kept = 0;
  /// Bytes of a parameter, and of its gradient, that are whole in the units at work alone; 0:
  /// always or never.
  double value = 0;
  double gradient = 0;
  /// Bytes of a gradient of the unit after the one at work, while it is summed over ranks.
  double sum = 0;
  /// Likewise in a pass that another follows, whose first unit's sum ends with the forward of that
  /// one; 0: none follows.
  double sum_before = 0;
  double gathered_sum = 0;    ///< Likewise of the unit after that one, whose sum is gathered.
  bool keeps_values = false;  ///< Whole values stay from forward until the unit's backward.
};

/// Bytes at that moment.
struct StepPeak {
  double activations = 0;  ///< Activations, from forward to backward.
  double transient = 0;    ///< For a while.
  double gathered = 0;     ///< Whole values and gradients of units.
  double total() const { return activations + transient + gathered; }
};

/// Values of a unit are gathered for backward while the unit after it works, those of the last
/// layer stay over the last unit, those of the first from a pass to the next. Gradients of a unit
/// are whole until those of the next one are (train/store.h). Cost: a few sums for each layer.
StepPeak step_peak(const ModelCost& cost, const PassOnRank& pass);

}  // namespace armillary::cost
