#include "armillary/train/checkpoint/resumable.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// Keys, or sections with the dot behind them.
constexpr std::string_view kMayChange[] = {
    // Files of the run, output, deadlines.
    "job.",
    "metrics.",
    "checkpoint.",
    "comm.",
    "training.dataset_path",
    "parallelism.proofs",
    // The way it is computed: results differ by rounding.
    "parallelism.pipeline_parallel_degree",
    "parallelism.data_parallel_replicate_degree",
    "parallelism.data_parallel_shard_degree",
    "parallelism.context_parallel_degree",
    "parallelism.tensor_parallel_degree",
    "parallelism.expert_parallel_degree",
    "parallelism.tensor_parallel_keep_inputs",
    "parallelism.zero",
    "parallelism.reshard_after_forward",
    "parallelism.threads_per_rank",
    "parallelism.strategy",
    "parallelism.layout",
    "activation_checkpoint.",
    "training.local_batch_size",
    "training.loss_chunk_tokens",
    "training.mixed_precision_reduce",
    "training.check_replicas",
    "training.validation_path",
    "training.validation_interval",
    "training.validation_sequences",
    // The steps that are still to come.
    "training.steps",
    "training.max_norm",
    "training.spike_guard",
    "training.spike_loss_factor",
    "training.spike_norm_factor",
    "training.spike_window",
    "training.spike_skip",
    "training.spike_rollbacks",
    "optimizer.lr",
    "optimizer.weight_decay",
    "optimizer.state_device",
    "lr_scheduler.",
    "model.router_aux_loss_coef",
    "model.balance_over",
};

/// The key of a line of settings(), "training.steps = 50".
std::string_view key_of(std::string_view line) {
  return line.substr(0, line.find(' '));
}

/// Whether both are steps of a bias that balances experts. 0 is no bias, and another model.
bool are_bias_steps(const std::string& setting, const std::string& saved) {
  constexpr std::string_view kStep = "model.load_balance_coeff = ";
  return std::ranges::all_of(std::array{&setting, &saved}, [&](const std::string* line) {
    return line->starts_with(kStep) && std::strtod(line->c_str() + kStep.size(), nullptr) > 0;
  });
}

}  // namespace

bool may_change(const std::string& key) {
  return std::ranges::any_of(kMayChange, [&](std::string_view listed) {
    return listed.ends_with('.') ? key.starts_with(listed) : key == listed;
  });
}

void check_resumable(const std::vector<std::string>& settings,
                     const std::vector<std::string>& saved) {
  // Keys of [model] depend on model.name, which comes first: with equal names both have the same.
  for (std::size_t i = 0; i < std::min(settings.size(), saved.size()); ++i) {
    if (settings[i] == saved[i] || may_change(std::string(key_of(settings[i])))) continue;
    if (are_bias_steps(settings[i], saved[i])) continue;
    fail<InvalidArgument>(
        "checkpoint: {} given; {}, that of the checkpoint, is required; nearest: another "
        "job.dump_folder",
        settings[i], saved[i]);
  }
}

}  // namespace armillary::train
