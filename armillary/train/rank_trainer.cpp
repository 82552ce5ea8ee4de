// One step on one rank.
//
// A step reads its sequences ahead, in the step before, so that the plans of their masks are proved
// beside compute. Then, for each sequence: shard, forward, backward into the store's gradients.
// Then one sum over the ranks, clipping and AdamW, which are the same arithmetic on every rank.
// Flags for a stop and for checkpoints are summed beside the loss.
#include "armillary/train/rank_trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/runtime/group_state.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/matmul_peak.h"
#include "armillary/train/same_recipe.h"

namespace armillary::train {
namespace {

at::ScalarType compute_dtype(const Recipe& recipe) {
  return recipe.training.mixed_precision_param == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

/// The dtype in which matrices are multiplied (linear.h), for the measured peak.
at::ScalarType product_dtype(const Recipe& recipe) {
  return kernel::cpu::multiplies_bf16() ? compute_dtype(recipe) : at::kFloat;
}

/// Clears the sign of a NaN, which means nothing but would be printed.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

}  // namespace

RankTrainer::RankTrainer(const comm::Mesh& mesh, model::Model& model, const Data& data,
                         const Recipe& recipe, const Recording& recording)
    : comm_(mesh.along(MeshAxis::Cp)),
      recording_(recording),
      recipe_(recipe),
      data_(data),
      model_(model),
      cost_(model.cost()),
      strategy_(chosen_strategy(recipe, cost_.attention, comm_).strategy),
      store_(model, recipe.training.seed),
      optimizer_(store_.pieces(), recipe.optimizer),
      rates_(rates_of(recipe).rates),
      peak_flops_(measure_matmul_peak(comm_, product_dtype(recipe))) {}

void RankTrainer::load_parameters_of(const std::string& folder) {
  load_parameters(folder, recipe_.model, store_.pieces());
}

void RankTrainer::begin_after(std::int64_t steps) {
  expect_same_parameters(comm_, store_.pieces());
  optimizer_.resume_after(steps);
  if (steps == recipe_.training.steps) return;
  comm::run_together(comm_, [&] {
    next_batch_ = read_batch(steps + 1);
    rehearse(next_batch_.front());
  });
}

StepMetrics RankTrainer::step(std::int64_t step, const std::function<Beside()>& beside) {
  const auto begin = std::chrono::steady_clock::now();
  recording_.begin_step(step);
  recording_.set_activity({.name = "reading data"});
  std::vector<SequenceTask>& batch = batch_ = std::move(next_batch_);
  if (step < recipe_.training.steps) read_ahead(step + 1);

  // The loss is a mean over the targets of all sequences, so they are counted first.
  std::int64_t targets = 0;
  for (const SequenceTask& task : batch) targets += model_.targets(task.sequence.fields);

  // Forward and backward of each sequence, then sums over the ranks.
  recording_.set_activity({.name = "forward and backward"});
  store_.zero_gradients();
  double loss = 0;
  std::int64_t visible_pairs = 0;
  for (const SequenceTask& task : batch) {
    visible_pairs += task.problem.mask.area();
    loss += forward_backward(task, std::max<std::int64_t>(targets, 1));
  }
  loss = sum_over_ranks(loss, beside);
  refuse_broken_batch();

  recording_.set_activity({.name = "optimizer"});
  // Update. Loss and norm are equal on all ranks, so all of them fail or none.
  const double grad_norm = optimizer_.clip(recipe_.training.max_norm);
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
    fail<Error>(
        "train: loss {} and grad_norm {} in step {}; finite numbers are required; lower "
        "optimizer.lr or raise lr_scheduler.warmup_steps",
        unsigned_nan(loss), unsigned_nan(grad_norm), step);
  }
  const double lr = rates_.at(step);
  optimizer_.step(lr);

  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return measure({.step = step, .loss = loss, .grad_norm = grad_norm, .lr = lr}, visible_pairs,
                 elapsed.count());
}

RunProgress RankTrainer::progress(std::int64_t step) const {
  return {.step = step,
          .sequences_read = step * recipe_.training.local_batch_size,
          .last_sequence = hash_of(batch_.back().sequence),
          .vocab_size = data_.vocab_size()};
}

// The sequences of a step, checked, and their problems on this world.
std::vector<SequenceTask> RankTrainer::read_batch(std::int64_t step) const {
  std::vector<SequenceTask> batch;
  const std::int64_t size = recipe_.training.local_batch_size;
  for (std::int64_t i = (step - 1) * size; i < step * size; ++i) {
    Sequence sequence = checked_sequence(data_, i, {recipe_.training.seq_len, model_.fields()});
    const plan::Mask mask = sequence_mask(recipe_.parallelism.mask, sequence.documents);
    plan::Problem problem = attention_problem(recipe_, cost_.attention, mask);
    problem.world = comm_.world();
    const std::uint64_t digest = digest_of(sequence);
    batch.push_back({std::move(sequence), std::move(problem), digest});
  }
  return batch;
}

// Reads the training batch of the next step. Its plans are proved beside this step: packed
// documents bring new masks every step. An error is kept: this rank alone may have it, and others
// are waiting for its tokens of this step.
void RankTrainer::read_ahead(std::int64_t step) {
  try {
    next_batch_ = read_batch(step);
  } catch (const std::exception&) {
    broken_ = std::current_exception();
    return;
  }
  for (const SequenceTask& task : next_batch_) {
    runtime::prove_ahead(comm_, task.problem, strategy_, recipe_.parallelism.proofs);
  }
}

// Runs the units on no tokens and without the other ranks, so that a unit that uses what it has not
// declared is told on every rank before any tile moves.
void RankTrainer::rehearse(const SequenceTask& task) {
  const at::NoGradGuard no_grad;
  const at::Tensor none_L = at::empty({0}, at::kLong);
  const auto query = [](const at::Tensor& q, const at::Tensor&, const at::Tensor&) { return q; };
  const auto keep = [query](const at::Tensor& q, const at::Tensor&, const at::Tensor&) {
    return model::KeptOutput{q, query};
  };
  model::run_units(model_, [&](int unit) { return store_.use(unit); },
                   {model::rows_of(task.sequence.fields, none_L), none_L, {query, keep}});
}

// Forward and backward of this rank's tokens of one sequence. Adds to the gradients and returns
// this rank's share of the loss.
double RankTrainer::forward_backward(const SequenceTask& task, std::int64_t targets) {
  const plan::Problem& problem = task.problem;
  recording_.begin_problem(problem, to_string(strategy_));
  const auto shards = plan::shards(problem.layout, problem.mask, comm_.world());
  const at::Tensor positions_L =
      at::tensor(plan::positions(shards.q[static_cast<std::size_t>(comm_.rank())]), at::kLong);
  const model::ModelInputs inputs{
      .batch = model::rows_of(task.sequence.fields, positions_L),
      .positions_L = positions_L,
      .attends = attend_over_ranks(comm_, {.mask = problem.mask,
                                           .layout = problem.layout,
                                           .strategy = to_string(strategy_),
                                           .transfer_dtype = problem.transfer_dtype,
                                           .sequence = task.digest,
                                           .proofs = recipe_.parallelism.proofs})};
  const at::Tensor loss = model::run_units(
                              model_, [&](int unit) { return store_.use(unit); }, inputs) /
                          targets;
  loss.backward();
  store_.check_views();
  return loss.item().toDouble();
}

// Sums the gradients over the ranks in place, and the loss with what travels beside it. That is
// asked as late as can be: a stop that comes in the step ends the run after it.
double RankTrainer::sum_over_ranks(double loss, const std::function<Beside()>& beside) {
  recording_.set_activity(
      {.name = "all_reduce of gradients", .bytes = store_.gradient_bytes(), .collective = true});
  for (int unit = 0; unit < store_.units(); ++unit) store_.reduce(unit, comm_);
  const Beside mine = beside();
  std::array values{loss, mine.stops, mine.busy, peak_is_low_ ? 1.0 : 0.0, broken_ ? 1.0 : 0.0};
  comm::all_reduce_sum(comm_, std::span(values));
  beside_ = {.stops = values[1], .busy = values[2]};
  ranks_above_peak_ = values[3];
  ranks_with_broken_ = values[4];
  return values[0];
}

void RankTrainer::refuse_broken_batch() const {
  if (ranks_with_broken_ == 0) return;
  comm::run_together(comm_, [&] {
    if (broken_) std::rethrow_exception(broken_);
  });
}

// Adds rates and memory to the metrics of a step that took so many seconds. A peak that a step was
// faster than is measured again, by all ranks.
StepMetrics RankTrainer::measure(StepMetrics metrics, std::int64_t visible_pairs, double seconds) {
  if (ranks_above_peak_ > 0 && measurements_left_-- > 0) {
    peak_flops_ = std::max(peak_flops_, measure_matmul_peak(comm_, product_dtype(recipe_)));
  }
  const std::int64_t tokens = recipe_.training.seq_len * recipe_.training.local_batch_size;
  const double rank_seconds = seconds * comm_.world();
  const double flops = cost_.flops(tokens, visible_pairs) / rank_seconds;
  metrics.memory_bytes = peak_resident_bytes();
  metrics.tps = static_cast<double>(tokens) / rank_seconds;
  metrics.tflops = flops * 1e-12;
  metrics.mfu = percent_of_peak(flops, peak_flops_);
  peak_is_low_ = !metrics.mfu && measurements_left_ > 0;
  return metrics;
}

}  // namespace armillary::train
