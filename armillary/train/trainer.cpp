#include "armillary/train/trainer.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/io/text_files.h"
#include "armillary/plan/strategy.h"
#include "armillary/plan/verify.h"
#include "armillary/train/estimate.h"
#include "armillary/train/lr_schedule.h"
#include "armillary/train/machine.h"
#include "armillary/train/matmul_peak.h"
#include "armillary/train/models/gpt.h"
#include "armillary/train/models/recompute.h"
#include "armillary/train/optimizer.h"

namespace armillary::train {
namespace {

at::Tensor row(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong).view({1, -1});
}

at::ScalarType compute_dtype(const Recipe& recipe) {
  return recipe.training.mixed_precision_param == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

/// What the matrices are multiplied in.
at::ScalarType product_dtype(const Recipe& recipe) {
  return cpu_multiplies_bf16() ? compute_dtype(recipe) : at::kFloat;
}

Gpt make_model(const Recipe& recipe) {
  Gpt model(GptOptions(recipe.model)
                .dtype(compute_dtype(recipe))
                .recompute(parse_recompute(recipe.activation_checkpoint.mode)));
  model->initialize(recipe.training.seed);
  return model;
}

/// The sign of a NaN says nothing, but would be printed.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

/// Training runs on proven plans only. @throws PlanError with the first broken rule.
void prove(const plan::Problem& problem, const std::string& strategy_text) {
  const plan::Strategy strategy = plan::parse_strategy(strategy_text);
  const std::vector<plan::Plan> plans =
      make_plans(problem, strategy, {plan::Pass::Forward, plan::Pass::Backward});
  std::vector<plan::Diagnostic> found = verify(plans[0], 1);
  if (found.empty()) found = verify(plans[1], 1);
  if (found.empty()) found = verify_saved(plans[0], plans[1], 1);
  if (!found.empty()) {
    fail<PlanError>("train: the plan of {} is wrong: rank {} op {}: {}: {}", strategy_text,
                    found[0].rank, found[0].op, found[0].rule, found[0].message);
  }
}

/// One rank's replica and its part of every step.
class RankTrainer {
 public:
  RankTrainer(comm::Communicator& comm, const Recipe& recipe, const PackedText& text)
      : comm_(comm),
        recipe_(recipe),
        text_(text),
        model_(make_model(recipe)),
        optimizer_(model_->parameters(), recipe.optimizer),
        peak_flops_(measure_matmul_peak(comm, product_dtype(recipe))) {}

  StepMetrics step(std::int64_t step) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Sequence> batch = read_batch(step);
    std::int64_t targets = 0;
    for (const Sequence& sequence : batch) targets += sequence.targets();

    optimizer_.zero_gradients();
    double loss = 0;
    std::int64_t visible_pairs = 0;
    for (const Sequence& sequence : batch) {
      const plan::Mask mask = sequence_mask(recipe_.parallelism.mask, sequence.documents);
      visible_pairs += mask.area();
      loss += forward_backward(sequence, mask, std::max<std::int64_t>(targets, 1));
    }
    loss = sum_over_ranks(loss);
    const double grad_norm = optimizer_.clip(recipe_.training.max_norm);
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
      fail<Error>(
          "train: loss {} and grad_norm {} in step {}; finite numbers are required; lower "
          "optimizer.lr or raise lr_scheduler.warmup_steps",
          unsigned_nan(loss), unsigned_nan(grad_norm), step);
    }
    optimizer_.step(recipe_.optimizer.lr *
                    lr_factor(recipe_.lr_scheduler, recipe_.training.steps, step));

    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    return measure({.step = step, .loss = loss, .grad_norm = grad_norm}, visible_pairs,
                   elapsed.count());
  }

 private:
  std::vector<Sequence> read_batch(std::int64_t step) const {
    std::vector<Sequence> batch;
    const std::int64_t size = recipe_.training.local_batch_size;
    for (std::int64_t i = (step - 1) * size; i < step * size; ++i) batch.push_back(text_.at(i));
    return batch;
  }

  /// Adds this rank's gradients of one sequence; returns its share of the loss.
  double forward_backward(const Sequence& sequence, const plan::Mask& mask, std::int64_t targets) {
    if (comm_.rank() == 0) prove(attention_problem(recipe_, mask), recipe_.parallelism.strategy);
    const plan::Layout layout = plan::parse_layout(recipe_.parallelism.layout);
    const auto shards = plan::shards(layout, mask, comm_.world());
    const auto positions = plan::positions(shards.q[static_cast<std::size_t>(comm_.rank())]);
    const auto loss =
        model_->loss(row(gather(sequence.tokens, positions)), at::tensor(positions, at::kLong),
                     row(gather(sequence.labels, positions)),
                     attends_over({.mask = mask,
                                   .layout = layout,
                                   .strategy = recipe_.parallelism.strategy,
                                   .wire = plan::parse_wire(recipe_.parallelism.wire)}),
                     recipe_.training.loss_chunk_tokens) /
        targets;
    loss.backward();
    return loss.item<double>();
  }

  /// The model's attention over all ranks.
  Attends attends_over(const attention::AttentionOptions& options) {
    using attention::KeptAttention;
    const auto attend = [this, options](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                        const at::Tensor& v_BLGD) {
      return attention::sequence_parallel_attention(q_BLHD, k_BLGD, v_BLGD, comm_, options);
    };
    const auto replay = [this, options](const KeptAttention& kept) {
      return [this, options, kept](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                   const at::Tensor& v_BLGD) {
        return attention::sequence_parallel_attention_replay(q_BLHD, k_BLGD, v_BLGD, kept, comm_,
                                                             options);
      };
    };
    const auto keep = [this, options, replay](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                              const at::Tensor& v_BLGD) {
      auto [out_BLHD, kept] =
          attention::sequence_parallel_attention_keep(q_BLHD, k_BLGD, v_BLGD, comm_, options);
      return KeptOutput{out_BLHD, replay(kept)};
    };
    return {attend, keep};
  }

  /// Sums the gradients in place and the loss.
  double sum_over_ranks(double loss) {
    comm::all_reduce_sum(comm_, optimizer_.gradients());
    comm::all_reduce_sum(comm_, std::span(&loss, 1));
    return loss;
  }

  StepMetrics measure(StepMetrics metrics, std::int64_t visible_pairs, double seconds) const {
    const std::int64_t tokens = recipe_.training.seq_len * recipe_.training.local_batch_size;
    const double rank_seconds = seconds * comm_.world();
    const double flops = model_flops(recipe_.model, tokens, visible_pairs) / rank_seconds;
    metrics.memory_bytes = peak_resident_bytes();
    metrics.tps = static_cast<double>(tokens) / rank_seconds;
    metrics.tflops = flops * 1e-12;
    if (peak_flops_ > 0) metrics.mfu = 100 * flops / peak_flops_;
    return metrics;
  }

  comm::Communicator& comm_;
  const Recipe& recipe_;
  const PackedText& text_;
  Gpt model_;
  Optimizer optimizer_;
  double peak_flops_;
};

}  // namespace

void train(const Recipe& recipe, const PackedText& text,
           const std::function<void(const StepMetrics&)>& on_step) {
  validate(recipe);
  const auto body = [&](comm::Communicator& comm) {
    at::set_num_threads(static_cast<int>(recipe.parallelism.threads_per_rank));
    RankTrainer trainer(comm, recipe, text);
    for (std::int64_t step = 1; step <= recipe.training.steps; ++step) {
      const StepMetrics metrics = trainer.step(step);
      if (comm.rank() == 0) on_step(metrics);
    }
  };
  comm::run_ranks(static_cast<int>(recipe.parallelism.context_parallel_degree), body,
                  {.timeout_s = recipe.comm.train_timeout_seconds});
}

PackedText load_text(const Recipe::Training& training) {
  if (training.dataset_path.empty()) {
    fail<InvalidArgument>(
        "recipe: training.dataset_path is empty; a folder or file of text is "
        "required, for example --set training.dataset_path=.");
  }
  std::vector<std::string> extensions;
  if (!training.dataset_extensions.empty()) {
    for (const std::string_view extension : split(training.dataset_extensions, ',')) {
      extensions.emplace_back(extension);
    }
  }
  std::vector<std::string> documents;
  for (io::TextFile& file : io::read_text(training.dataset_path, extensions)) {
    documents.push_back(std::move(file.bytes));
  }
  return {documents, {.seq_len = training.seq_len, .seed = training.seed}};
}

}  // namespace armillary::train
