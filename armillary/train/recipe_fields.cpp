// recipe_fields.cpp: the table of keys: section, key, member, meaning, legal values.
//
// fields() puts it together in the order in which recipes are printed: [job], [model] with the keys
// of the named model, the sections that decide what is trained, then those of runs.
#include "armillary/train/recipe_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <iterator>
#include <limits>

#include "armillary/core/threads.h"
#include "armillary/train/models/recompute.h"
#include "armillary/train/models/registry.h"

namespace armillary::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Ranges, each with its words for errors.
Range at_least(std::int64_t min) {
  return {static_cast<double>(min), DBL_MAX, fmt::format("at least {}", min)};
}
Range between(std::int64_t min, std::int64_t max) {
  return {static_cast<double>(min), static_cast<double>(max),
          fmt::format("between {} and {}", min, max)};
}
Range above_zero(double max = DBL_MAX) {
  return {DBL_TRUE_MIN, max, max < DBL_MAX ? fmt::format("above 0, at most {}", max) : "above 0"};
}
Range below_one() {
  return {0, std::nextafter(1.0, 0.0), "at least 0 and below 1"};
}

// Plans store heads and widths as `int`.
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxBatch = 4096;

using Names = std::vector<std::string>;

/// Keys of [parallelism], [checkpoint], [comm] and [metrics]: the ranks of a run, and its output.
std::vector<Field> fields_of_runs(Recipe& r) {
  return {
      {"parallelism", "pipeline_parallel_degree", &r.parallelism.pipeline_parallel_degree,
       "not built yet: 1", between(1, kMaxThreads)},
      {"parallelism", "data_parallel_replicate_degree",
       &r.parallelism.data_parallel_replicate_degree, "not built yet: 1", between(1, kMaxThreads)},
      {"parallelism", "context_parallel_degree", &r.parallelism.context_parallel_degree,
       "ranks that share each sequence; threads of one process", between(1, kMaxThreads)},
      {"parallelism", "tensor_parallel_degree", &r.parallelism.tensor_parallel_degree,
       "not built yet: 1", between(1, kMaxThreads)},
      {"parallelism", "threads_per_rank", &r.parallelism.threads_per_rank,
       "threads that work for each rank", between(1, kMaxThreads)},
      {"parallelism", "strategy", &r.parallelism.strategy,
       "as in `armillary plan --strategy`, or auto:cluster=NAME"},
      {"parallelism", "layout", &r.parallelism.layout, "as in `armillary plan --layout`"},
      {"parallelism", "mask", &r.parallelism.mask,
       "documents[:within=..] (those packed in the sequence), or as in `armillary plan --mask`"},
      {"parallelism", "wire", &r.parallelism.wire,
       "dtype in which partial outputs and gradients travel", Names{"accumulator", "input"}},
      {"parallelism", "proofs", &r.parallelism.proofs,
       "folder of `armillary verify --save-proof`; what it has not is proved here"},
      {"checkpoint", "enable", &r.checkpoint.enable,
       "save every `interval` steps, at the end, and when the run is told to stop"},
      {"checkpoint", "folder", &r.checkpoint.folder, "folder for checkpoints, in job.dump_folder"},
      {"checkpoint", "interval", &r.checkpoint.interval, "steps between checkpoints", at_least(1)},
      {"checkpoint", "keep_latest_k", &r.checkpoint.keep_latest_k,
       "newest checkpoints that are kept; 0: all", at_least(0)},
      {"comm", "train_timeout_seconds", &r.comm.train_timeout_seconds,
       "longest wait of a rank for another", above_zero(1e9)},
      {"metrics", "log_freq", &r.metrics.log_freq,
       "steps per line of metrics; the first and the last step have one too", at_least(1)},
  };
}

/// Keys of [model] that the named model has.
std::vector<Field> fields_of_model(Recipe& r, const Range& size) {
  // 0 stands for the model's own choice.
  const Range size_or_default = between(0, kMaxSize);
  const bool is_llama = r.model.name == "llama";
  const std::string hidden_about = is_llama ? "width of the MLP; 0: 8/3 dim, as the keys below say"
                                            : "width of the MLP; 0: 4 dim";
  std::vector<Field> keys = {
      {"model", "name", &r.model.name, "which; the other keys of this section are its own",
       model_names()},
      {"model", "dim", &r.model.dim, "width of the residual stream", size},
      {"model", "n_layers", &r.model.n_layers, "transformer layers", between(1, kMaxLayers)},
      {"model", "n_heads", &r.model.n_heads, "query heads; must divide dim", size},
      {"model", "n_kv_heads", &r.model.n_kv_heads, "KV heads (GQA); 0: n_heads", size_or_default},
      {"model", "hidden_dim", &r.model.hidden_dim, hidden_about, size_or_default},
      {"model", "norm_eps", &r.model.norm_eps, "epsilon of RMSNorm", above_zero()},
      {"model", "rope_theta", &r.model.rope_theta, "base of the rotary periods", above_zero()},
      {"model", "enable_weight_tying", &r.model.enable_weight_tying, "output = embedding"},
  };
  // Llama's rule for the width of its MLP.
  if (is_llama) {
    keys.push_back({"model", "multiple_of", &r.model.multiple_of,
                    "hidden_dim 0 is rounded up to a multiple of it", size});
    keys.push_back({"model", "ffn_dim_multiplier", &r.model.ffn_dim_multiplier,
                    "factor of hidden_dim 0", above_zero(1e9)});
  }
  return keys;
}

}  // namespace

std::vector<Field> fields(Recipe& r) {
  const Range size = between(1, kMaxSize);
  std::vector<Field> all = {
      {"job", "dump_folder", &r.job.dump_folder, "folder for metrics.jsonl and recipe.toml"},
      {"job", "description", &r.job.description, "a line for the reader"},
  };
  std::ranges::move(fields_of_model(r, size), std::back_inserter(all));
  // Keys that decide what is trained.
  std::vector<Field> training = {
      {"training", "dataset_path", &r.training.dataset_path, "folder or file of UTF-8 text"},
      {"training", "dataset_extensions", &r.training.dataset_extensions,
       "files of the folder to read, by comma; empty: all"},
      {"training", "seq_len", &r.training.seq_len, "tokens per sequence, over all ranks", size},
      {"training", "local_batch_size", &r.training.local_batch_size, "sequences per step",
       between(1, kMaxBatch)},
      {"training", "steps", &r.training.steps, "optimizer steps", at_least(1)},
      {"training", "max_norm", &r.training.max_norm,
       "clips the global gradient norm; inf: no clipping", above_zero(kInfinity)},
      {"training", "mixed_precision_param", &r.training.mixed_precision_param,
       "dtype of products, activations; AdamW stays float32", Names{"float32", "bfloat16"}},
      {"training", "loss_chunk_tokens", &r.training.loss_chunk_tokens,
       "tokens of a rank whose logits exist at once", size},
      {"training", "seed", &r.training.seed, "of initial weights and order of data", at_least(0)},
      {"activation_checkpoint", "mode", &r.activation_checkpoint.mode,
       "what backward makes again of a layer: nothing, all, or all but attention's output",
       recompute_names()},
      {"optimizer", "name", &r.optimizer.name, "AdamW", Names{"AdamW"}},
      {"optimizer", "lr", &r.optimizer.lr, "peak learning rate", above_zero()},
      {"optimizer", "beta1", &r.optimizer.beta1, "decay of the mean", below_one()},
      {"optimizer", "beta2", &r.optimizer.beta2, "decay of the mean square", below_one()},
      {"optimizer", "eps", &r.optimizer.eps, "added to the root mean square", above_zero()},
      {"optimizer", "weight_decay", &r.optimizer.weight_decay, "decoupled, times lr", at_least(0)},
      {"lr_scheduler", "warmup_steps", &r.lr_scheduler.warmup_steps, "linear rise", at_least(0)},
      {"lr_scheduler", "decay_ratio", &r.lr_scheduler.decay_ratio,
       "part of the steps, at the end, that decay", between(0, 1)},
      {"lr_scheduler", "decay_type", &r.lr_scheduler.decay_type, "shape of the decay",
       Names{"linear", "sqrt", "cosine"}},
      {"lr_scheduler", "min_lr_factor", &r.lr_scheduler.min_lr_factor, "lr at the end / peak lr",
       between(0, 1)},
  };
  std::ranges::move(training, std::back_inserter(all));
  std::ranges::move(fields_of_runs(r), std::back_inserter(all));
  return all;
}

}  // namespace armillary::train
