// training_options.h: the [training] section of a recipe, for the trainer and its data.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/core/section.h"

namespace armillary::train {

inline constexpr std::int64_t kMaxBatch = 4096;          ///< Sequences of a step.
inline constexpr std::int64_t kMostSpikeWindow = 10000;  ///< Checkpoints hold so many numbers.

/// Data, length and arithmetic. Lengths are in tokens, over all ranks unless said otherwise.
struct TrainingOptions {
  std::string dataset_path;
  std::string dataset_extensions = ".py,.txt,.md";
  std::int64_t seq_len = 4096;
  std::int64_t global_batch_size = 1;
  std::int64_t local_batch_size = 1;
  std::int64_t steps = 100;
  double max_norm = 1.0;
  // Names of dtypes; dtypes.h has the rules.
  std::string dtype = "float32";
  std::string mixed_precision_param = "float32";
  std::string mixed_precision_reduce = "float32";
  std::int64_t loss_chunk_tokens = 1024;  ///< Tokens of one rank.
  std::int64_t seed = 0;
  std::int64_t check_replicas = 100;  ///< Steps; 0: never.
  // The validation loss of a run (forward_loss.h).
  std::string validation_path;
  std::int64_t validation_interval = 0;   ///< Steps; 0: never.
  std::int64_t validation_sequences = 0;  ///< 0: those of an epoch.
  // Steps that are refused (spike_guard.h).
  std::string spike_guard = "none";
  double spike_loss_factor = 2;
  double spike_norm_factor = 20;
  std::int64_t spike_window = 32;  ///< Steps.
  std::string spike_skip = "batch";
  std::int64_t spike_rollbacks = 3;
};

Section section_of(TrainingOptions& training);

}  // namespace armillary::train
