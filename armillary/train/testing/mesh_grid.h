// mesh_grid.h: a tiny model trained on any mesh, with the loss, the norm and every gradient of
// every step by global name, and their distance from those of one rank.
//
// Gradients are read where every user can read them: with beta1 = 0 AdamW's mean is the gradient of
// the step, clipped, and a checkpoint of every step has the means by name, whole, from whatever
// ranges the ranks hold. With eps = 1 an update is nearly that of SGD: Adam's own would divide
// gradients that are rounding by their size, and so make it large.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/mesh_shape.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/sequences.h"
#include "armillary/train/trainer.h"

namespace armillary::train {

/// Sequences of five kinds in turn: packed documents of many lengths; targets in the first quarter
/// alone, so that ranks along cp and tp have none; a single target; one document; no target at all,
/// so that a rank along dp has none.
class GridSequences : public Data {
 public:
  static constexpr std::int64_t kLength = 26;

  std::int64_t vocab_size() const override { return kVocabSize; }

  Sequence at(std::int64_t index) const override {
    static const std::vector<Numbers> lengths{{5, 13, 8}, {1, 25}, {9, 9, 8}, {26}, {20, 6}};
    const auto kind = static_cast<std::size_t>(index % 5);
    Numbers tokens;
    for (std::int64_t i = 0; i < kLength; ++i) {
      tokens.push_back((index * 31 + i * i * 7 + i * (index + 3)) % kVocabSize);
    }
    Numbers labels;
    for (const std::int64_t length : lengths[kind]) {
      for (std::int64_t i = 1; i < length; ++i) labels.push_back(tokens[labels.size() + 1]);
      labels.push_back(model::kIgnoredLabel);
    }
    for (std::int64_t i = 0; i < kLength; ++i) {
      const bool is_left_out = kind == 1 ? i > kLength / 4 : kind == 2 ? i != 11 : kind == 4;
      if (is_left_out) labels[static_cast<std::size_t>(i)] = model::kIgnoredLabel;
    }
    return sequence_of(tokens, labels, lengths[kind]);
  }
};

struct GridModel {
  std::string name = "gpt";
  std::int64_t kv_heads = 0;  ///< 0: as many as query heads.
  bool tied = false;
  /// A llama's: heads of another size than dim / heads, with biases of Q, K and V and norms.
  bool is_relative = false;
};

/// Keys of a mesh that change no sum.
struct MeshGridOptions {
  const char* strategy = "ring";
  int copies = 1;  ///< A divisor of dp.
  std::int64_t local_batch_size = 1;
  bool reshard_after_forward = true;
  int ep = 1;
};

struct GridCell {
  MeshShape mesh;
  int zero = 0;
  std::string recompute = "none";
  MeshGridOptions options = {};
};

inline std::string mesh_text(const MeshShape& mesh) {
  return fmt::format("dp {:>2} cp {:>2} tp {:>2}", mesh.dp, mesh.cp, mesh.tp);
}
inline std::string to_string(const GridCell& cell) {
  const MeshGridOptions& options = cell.options;
  return fmt::format("{}, ZeRO-{}, recompute {}, {}, copies {}, ep {}, local batch {}{}",
                     mesh_text(cell.mesh), cell.zero, cell.recompute, options.strategy,
                     options.copies, options.ep, options.local_batch_size,
                     options.reshard_after_forward ? "" : ", parameters stay");
}
inline std::string to_string(const GridModel& model) {
  return fmt::format("{} kv {} {}", model.is_relative ? "qwen" : model.name, model.kv_heads,
                     model.tied ? "tied" : "untied");
}

/// All meshes of dp x cp x tp with so many ranks.
inline std::vector<MeshShape> meshes_of(int ranks) {
  std::vector<MeshShape> meshes;
  for (int dp = 1; dp <= ranks; ++dp) {
    for (int cp = 1; dp * cp <= ranks; ++cp) {
      if (ranks % (dp * cp) == 0) meshes.push_back({.dp = dp, .cp = cp, .tp = ranks / dp / cp});
    }
  }
  return meshes;
}

/// Whether ranks along tp can share the KV heads.
inline bool is_legal(const GridModel& model, int tp) {
  return model.kv_heads == 0 || tp <= model.kv_heads || tp % model.kv_heads == 0;
}

/// A recipe of this model with so many heads of `head_dim`, for as many sequences a step.
inline Recipe grid_recipe(const GridModel& model, std::int64_t heads, std::int64_t head_dim,
                          std::int64_t batch) {
  Recipe recipe;
  recipe.model.name = model.name;
  recipe.model.dim = heads * head_dim;
  recipe.model.n_layers = 2;
  recipe.model.n_heads = heads;
  recipe.model.n_kv_heads = model.kv_heads;
  recipe.model.hidden_dim = heads * head_dim + heads + 1;
  recipe.model.max_seq_len = GridSequences::kLength;
  recipe.model.enable_weight_tying = model.tied;
  if (model.is_relative) {
    recipe.model.head_dim = head_dim + 2;
    recipe.model.qkv_bias = recipe.model.qk_norm = true;
  }
  recipe.training.seq_len = GridSequences::kLength;
  recipe.training.global_batch_size = batch;
  recipe.training.steps = 5;
  recipe.training.loss_chunk_tokens = 7;
  recipe.training.check_replicas = 2;
  recipe.optimizer.beta1 = 0;
  recipe.optimizer.eps = 1;
  recipe.optimizer.lr = 0.3;
  recipe.lr_scheduler.warmup_steps = 1;
  recipe.lr_scheduler.decay_ratio = 0;
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 1;
  recipe.checkpoint.keep_latest_k = 0;
  return recipe;
}

/// The recipe with everything in fp64.
inline Recipe in_fp64(Recipe recipe) {
  recipe.training.dtype = "float64";
  recipe.training.mixed_precision_param = "float64";
  return recipe;
}

inline Recipe on_cell(Recipe recipe, const GridCell& cell) {
  recipe.parallelism.data_parallel_replicate_degree = cell.options.copies;
  recipe.parallelism.data_parallel_shard_degree = cell.mesh.dp / cell.options.copies;
  recipe.parallelism.context_parallel_degree = cell.mesh.cp;
  recipe.parallelism.tensor_parallel_degree = cell.mesh.tp;
  recipe.parallelism.expert_parallel_degree = cell.options.ep;
  recipe.parallelism.zero = cell.zero;
  recipe.parallelism.reshard_after_forward = cell.options.reshard_after_forward;
  recipe.parallelism.strategy = cell.options.strategy;
  recipe.training.local_batch_size = cell.options.local_batch_size;
  recipe.activation_checkpoint.mode = cell.recompute;
  return recipe;
}

/// A step as all ranks together have taken it.
struct TracedStep {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, at::Tensor> gradients;  ///< By name, whole and clipped, in fp64.
};

/// Trains as a recipe says, and calls back as the options say.
using GridRun = std::function<void(const Recipe& recipe, const TrainOptions& options)>;

/// The steps of a run with a recipe like those of grid_recipe().
inline std::vector<TracedStep> trace_of(Recipe recipe, const GridRun& run) {
  constexpr std::string_view kMeans = "means/";
  const ScratchFolder folder;
  recipe.job.dump_folder = folder.path("run");
  std::vector<TracedStep> steps;
  run(recipe, {.on_step = [&](const StepMetrics& metrics) {
        steps.push_back({.loss = metrics.loss, .grad_norm = metrics.grad_norm, .gradients = {}});
      }});
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Checkpoint checkpoint(checkpoint_folder(recipe) + "/" +
                                checkpoint_name(static_cast<std::int64_t>(i) + 1));
    for (const io::TensorInfo& info : checkpoint.tensors()) {
      if (!info.name.starts_with(kMeans)) continue;
      const std::vector<std::byte> bytes = checkpoint.bytes(info);
      const at::Tensor mean =
          at::empty(info.shape, info.dtype == io::TensorDtype::F64 ? at::kDouble : at::kFloat);
      std::memcpy(mean.data_ptr(), bytes.data(), bytes.size());
      steps[i].gradients[info.name.substr(kMeans.size())] = mean.to(at::kDouble);
    }
  }
  return steps;
}

/// The same on GridSequences, of the recipe's own model.
inline std::vector<TracedStep> trace_of(const Recipe& recipe) {
  return trace_of(recipe, [](const Recipe& of_run, const TrainOptions& options) {
    train(of_run, GridSequences(), options);
  });
}

/// The largest relative differences of two runs.
struct GridError {
  double loss = 0;  ///< Or of the norm.
  double gradient = 0;
  std::string where;  ///< Step and parameter of that gradient.

  /// Takes what is larger in another.
  void add(const GridError& other) {
    loss = std::max(loss, other.loss);
    if (other.gradient <= gradient) return;
    gradient = other.gradient;
    where = other.where;
  }
};

/// Differences of a run from the one of one rank. That of a gradient is by the 2-norm, and relative
/// to that of the gradient, or to `floor` of the largest of the step's if that is more: a gradient
/// that is 0 but for rounding, as that of a bias of keys, has no relative error. A gradient
/// that is not finite, or missing, is infinitely far.
inline GridError error_of(const std::vector<TracedStep>& run, const std::vector<TracedStep>& one,
                          double floor) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const auto relative = [](double difference, double size) {
    if (difference == 0) return 0.0;
    const double error = std::abs(difference) / size;
    return std::isfinite(error) ? error : kInfinite;
  };
  GridError error;
  if (run.size() != one.size()) return {.loss = kInfinite, .gradient = kInfinite, .where = "steps"};
  for (std::size_t i = 0; i < one.size(); ++i) {
    error.loss = std::max({error.loss, relative(run[i].loss - one[i].loss, one[i].loss),
                           relative(run[i].grad_norm - one[i].grad_norm, one[i].grad_norm)});
    double largest = 0;
    for (const auto& [name, gradient] : one[i].gradients) {
      largest = std::max(largest, gradient.norm().item<double>());
    }
    for (const auto& [name, gradient] : one[i].gradients) {
      const auto other = run[i].gradients.find(name);
      const bool is_there =
          other != run[i].gradients.end() && other->second.sizes() == gradient.sizes();
      const double size = std::max(gradient.norm().item<double>(), floor * largest);
      error.add({.loss = 0,
                 .gradient = is_there
                                 ? relative((other->second - gradient).norm().item<double>(), size)
                                 : kInfinite,
                 .where = fmt::format("step {}, {}", i + 1, name)});
    }
  }
  return error;
}

}  // namespace armillary::train
