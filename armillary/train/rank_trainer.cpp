// One step on one rank.
//
// A step reads its sequences ahead, in the step before, so that the plans of their masks are proved
// beside compute. The rest is the program of the step, which was proved and is run op by op
// (step_runner.h): here it is told its inputs, and cut where ranks sum the loss, and where clipping
// knows the norm. Flags for a stop and for checkpoints, and the targets of the next step, are
// summed beside the loss.
#include "armillary/train/rank_trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/core/process_stat.h"
#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/runtime/group_state.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/check_replicas.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/checkpoint/write.h"
#include "armillary/train/evaluate.h"
#include "armillary/train/expert_parallel_over_ranks.h"
#include "armillary/train/forward_loss.h"
#include "armillary/train/matmul_peak.h"
#include "armillary/train/not_finite.h"
#include "armillary/train/same_recipe.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary::train {
namespace {

/// The dtype in which matrices are multiplied (linear.h), for the measured peak.
at::ScalarType product_dtype(const Recipe& recipe) {
  const at::ScalarType dtype = dtypes_of(recipe.training).param;
  return dtype == at::kBFloat16 && !kernel::cpu::multiplies_bf16() ? at::kFloat : dtype;
}

// Advice for numbers that are not finite.
constexpr std::string_view kLowerRate = "lower optimizer.lr or raise lr_scheduler.warmup_steps";
constexpr std::string_view kNoUpdate =
    "no update makes it so, but memory, a model or a file of parameters; nearest: --resume from a "
    "checkpoint";

/// Clears the sign of a NaN, which means nothing but would be printed.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

}  // namespace

RankTrainer::RankTrainer(const comm::Mesh& mesh, model::Model& model, ProvedStep step,
                         const RankInputs& inputs)
    : mesh_(mesh),
      world_(mesh.world()),
      comm_(mesh.along(MeshAxis::Cp)),
      recording_(inputs.recording),
      recipe_(inputs.recipe),
      data_(inputs.data),
      model_(model),
      cost_(model.cost()),
      attention_(
          heads_along_tp(cost_.attention, mesh.index(MeshAxis::Tp), mesh.size(MeshAxis::Tp))),
      strategy_(chosen_strategy(recipe_, attention_, comm_).strategy),
      step_(std::move(step)),
      groups_(mesh, recipe_.parallelism, has_experts(model)),
      tensor_parallel_(groups_.replicas().tp == nullptr
                           ? nullptr
                           : tensor_parallel_over_ranks(*groups_.replicas().tp)),
      expert_parallel_(expert_parallel_of(model, mesh, groups_.replicas())),
      peak_flops_(measure_matmul_peak(world_, product_dtype(recipe_))),
      store_(model, recipe_.training.seed, groups_.replicas(), dtypes_of(recipe_.training),
             {.on_host = recipe_.optimizer.state_on_host(),
              .timeout_s = recipe_.comm.train_timeout_seconds}),
      optimizer_(store_.pieces(), recipe_.optimizer, store_.dtypes().master),
      rates_(rates_of(recipe_).rates) {
  ARMILLARY_CHECK(step_.tables.zero() == store_.zero() && step_.tables.units() == store_.units());
  // A step has all sequences.
  cost_.sequence_flops *= static_cast<double>(recipe_.training.global_batch_size);
}

void RankTrainer::load_parameters_of(const std::string& folder) {
  load_parameters(folder, recipe_.model, store_);
}

std::vector<SavedTensor> RankTrainer::saved() const {
  const Replicas& replicas = groups_.replicas();
  const bool is_whole = store_.zero() == 0 && replicas.copies == nullptr;
  std::vector<SavedTensor> all;
  for (const bool experts : {false, true}) {
    std::vector<Piece> pieces = store_.pieces();
    std::erase_if(pieces,
                  [&](const Piece& piece) { return piece.is_copy || piece.is_expert != experts; });
    std::vector<SavedTensor> tensors;
    for (const StateTensor& tensor : state_of(pieces)) tensors.push_back(tensor.saved());
    // Ranks that hold the same tensors share them.
    const comm::Communicator* const alike = !is_whole ? replicas.copies
                                            : experts ? replicas.experts
                                                      : replicas.sharded;
    if (alike != nullptr) tensors = share_of(tensors, alike->rank(), alike->world());
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

void RankTrainer::check_tensors(const std::string& path, const Restored& restored) const {
  check_no_other(path, restored.tensors, model_.parameters());
}

void RankTrainer::begin_after(const RunProgress& progress) {
  const std::int64_t steps = progress.step;
  order_ = BatchOrder(progress.skipped);
  guard_.emplace(recipe_.training, progress.recent);
  expect_equal_start(mesh_, store_);
  store_.gather_values();
  optimizer_.resume_after(steps);
  if (steps == recipe_.training.steps) return;
  comm::run_together(world_, [&] {
    next_batch_ = read_batch(steps + 1);
    rehearse(next_batch_.front());
  });
  next_targets_ = targets_of(next_batch_);
  comm::all_reduce_sum(world_, std::span(&next_targets_, 1));
}

StepMetrics RankTrainer::step(std::int64_t step, const std::function<Beside()>& beside) {
  const auto begin = std::chrono::steady_clock::now();
  recording_.begin_step(step);
  recording_.set_activity({.name = "reading data"});
  std::vector<Microbatch>& batch = batch_ = std::move(next_batch_);
  expect_same_batch();
  if (step < recipe_.training.steps) read_ahead(step + 1);

  // Forward and backward of each microbatch; the loss is a mean over the targets of all of them.
  ARMILLARY_CHECK(static_cast<int>(batch.size()) == step_.tables.shape().microbatches);
  targets_ = std::max(next_targets_, 1.0);
  const double lr = rates_.at(step);
  const auto inputs = [&](int microbatch) {
    return inputs_of(batch[static_cast<std::size_t>(microbatch)]);
  };
  StepRunner runner(parts(), step_, {.inputs = inputs, .targets = targets_, .lr = lr});
  StepSums sums;
  for (const Microbatch& task : batch) {
    if (counts()) sums.visible_pairs += static_cast<double>(task.problem.mask.area());
  }
  sums.loss = runner.run_gradients();
  recording_.set_activity(
      {.name = "sum of gradients", .bytes = store_.gradient_bytes(), .collective = true});
  sums = sum_over(runner.loss_group(), sums, beside);
  const double loss = sums.loss;
  refuse_broken_batch();

  recording_.set_activity({.name = "optimizer"});
  // Update. Loss and norm are equal on all ranks, so all of them fail or none.
  runner.run_norm();
  const double grad_norm = optimizer_.clip(recipe_.training.max_norm);
  if (std::string fault = fault_of(step, loss, grad_norm); !fault.empty()) {
    spike_ = std::move(fault);
    return {.step = step, .loss = loss, .grad_norm = grad_norm, .lr = lr};
  }
  runner.run_update();
  guard_->take(loss, grad_norm);
  const std::int64_t every = recipe_.training.check_replicas;
  if (every > 0 && step % every == 0) {
    expect_equal_replicas(world_, groups_.replicas(), store_, step);
  }

  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return measure({.step = step, .loss = loss, .grad_norm = grad_norm, .lr = lr}, sums.visible_pairs,
                 elapsed.count());
}

double RankTrainer::validation_loss(const Data& data) {
  recording_.set_activity({.name = "validation", .collective = true});
  const double waited_s = store_.waited_s();
  const Recipe one_pass = eval_recipe(recipe_);
  const std::string strategy = to_string(strategy_);
  const double loss = forward_loss({.mesh = mesh_,
                                    .model = model_,
                                    .store = store_,
                                    .recipe = one_pass,
                                    .attention = attention_,
                                    .strategy = strategy,
                                    .tensor_parallel = tensor_parallel_,
                                    .expert_parallel = expert_parallel_,
                                    .recording = &recording_},
                                   data, validation_sequences(recipe_.training, data))
                          .loss;
  validation_waited_s_ += store_.waited_s() - waited_s;
  return loss;
}

std::string RankTrainer::fault_of(std::int64_t step, double loss, double grad_norm) {
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
    const std::string where = first_not_finite();
    comm::meet(world_);
    return fmt::format("loss {} and grad_norm {} in step {}; finite numbers are required; {}",
                       unsigned_nan(loss), unsigned_nan(grad_norm), step, where);
  }
  const std::string spike = guard_->spike(loss, grad_norm);
  if (spike.empty()) return "";
  return fmt::format(
      "{} in step {}; at most {:.4g} times the loss and {:.4g} times the norm are "
      "required (training.spike_loss_factor, spike_norm_factor)",
      spike, step, recipe_.training.spike_loss_factor, recipe_.training.spike_norm_factor);
}

RunProgress RankTrainer::progress(std::int64_t step) const {
  const std::int64_t read = order_.batch_of(step) * recipe_.training.global_batch_size;
  // Rank 0 alone writes it, and reads the whole sequence.
  return {.step = step,
          .sequences_read = read,
          .last_sequence = world_.rank() == 0 ? hash_of(data_.at(read - 1)) : "",
          .vocab_size = data_.vocab_size(),
          .data = data_.identity(),
          .skipped = order_.skipped(),
          .recent = guard_->recent()};
}

std::vector<Microbatch> RankTrainer::read_batch(std::int64_t step) const {
  const TrainingOptions& training = recipe_.training;
  const std::int64_t mine = training.global_batch_size / mesh_.size(MeshAxis::Dp);
  const std::int64_t first =
      (order_.batch_of(step) - 1) * training.global_batch_size + mesh_.index(MeshAxis::Dp) * mine;
  std::vector<Microbatch> batch;
  for (std::int64_t i = first; i < first + mine; i += training.local_batch_size) {
    batch.push_back(
        read_microbatch(data_, i, model_, recipe_, {attention_, comm_.rank(), comm_.world()}));
  }
  return batch;
}

// Attention compares the sequences along cp; along tp nothing else would.
void RankTrainer::expect_same_batch() const {
  if (!tensor_parallel_) return;
  std::uint64_t digest = 0;
  for (const Microbatch& task : batch_) digest = digest * 31 + task.digest;
  expect_same_data(*groups_.replicas().tp, digest, "sequences");
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
  for (const Microbatch& task : next_batch_) {
    runtime::prove_ahead(comm_, task.problem, strategy_, recipe_.parallelism.proofs);
  }
}

double RankTrainer::targets_of(const std::vector<Microbatch>& batch) const {
  std::int64_t targets = 0;
  for (const Microbatch& task : batch) targets += task.targets;
  // Ranks along tp have the same tokens.
  return mesh_.index(MeshAxis::Tp) == 0 ? static_cast<double>(targets) : 0;
}

// Runs the units on no tokens and without the other ranks, so that a unit that uses what it has not
// declared is told on every rank before any tile moves.
void RankTrainer::rehearse(const Microbatch& task) {
  const at::NoGradGuard no_grad;
  model::Fields none;
  for (const auto& [name, values] : task.batch) none.set(name, values.narrow(1, 0, 0));
  const at::Tensor none_L = at::empty({0}, at::kLong);
  const auto query = [](const at::Tensor& q, const at::Tensor&, const at::Tensor&) { return q; };
  const auto keep = [query](const at::Tensor& q, const at::Tensor&, const at::Tensor&) {
    return model::KeptOutput{q, query};
  };
  const auto blank = [this](int unit) {
    if (unit > 0) store_.release(unit - 1);
    return store_.blank(unit);
  };
  model::run_units(model_, blank, {none, none_L, {query, keep}});
  store_.release(store_.units() - 1);
}

// This rank's tokens of one microbatch, and the attention over it.
model::ModelInputs RankTrainer::inputs_of(const Microbatch& task) const {
  const plan::Problem& problem = task.problem;
  recording_.begin_problem(problem, to_string(strategy_));
  return {
      .batch = task.batch,
      .positions_L = task.positions_L,
      .attends = attend_over_ranks(comm_, {.mask = problem.mask,
                                           .layout = problem.layout,
                                           .strategy = to_string(strategy_),
                                           .transfer_dtype = problem.transfer_dtype,
                                           .sequence = task.digest,
                                           .proofs = recipe_.parallelism.proofs}),
      .tensor_parallel = tensor_parallel_,
      .expert_parallel = expert_parallel_,
      .sequences = {.number_L = task.sequence_L,
                    .count = task.sequences,
                    .sequence_share = 1 / static_cast<double>(recipe_.training.global_batch_size),
                    .pass_share = 1 / static_cast<double>(batch_.size())}};
}

// The parameters are still those of the step, so its microbatches are taken again, each as a step
// of its own.
std::string RankTrainer::first_not_finite() {
  const FirstNotFinite value = first_of(world_, value_not_finite(store_));
  if (value.rank >= 0) {
    const bool is_inf = value.number.place >= kInfPlace;
    return fmt::format("the first on rank {}, before the step: {}; {}", value.rank,
                       value.number.what, is_inf ? kLowerRate : kNoUpdate);
  }
  plan::step::StepShape shape = step_.tables.shape();
  shape.microbatches = 1;
  const ProvedStep one = proved_step(world_, shape);
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    FiniteWatch watch(model_.units());
    const auto inputs = [&](int) { return watch.watched(inputs_of(batch_[i])); };
    const StepTask task{.inputs = inputs, .targets = targets_, .watch = &watch};
    watch.see_loss(StepRunner(parts(), one, task).run_gradients());
    const FirstNotFinite first = first_of(world_, watch.first());
    if (first.rank < 0) continue;
    return fmt::format("the first in microbatch {} on rank {}: {}; {}", i, first.rank,
                       first.number.what, kLowerRate);
  }
  return fmt::format("those of each rank and microbatch are, their sum is not; {}", kLowerRate);
}

// Sums over all ranks the numbers of a step, and what travels beside them. That is asked as late as
// can be: a stop that comes in the step ends the run after it.
StepSums RankTrainer::sum_over(comm::Communicator& ranks, StepSums mine,
                               const std::function<Beside()>& beside) {
  const Beside told = beside();
  std::array values{mine.loss,
                    mine.visible_pairs,
                    targets_of(next_batch_),
                    told.stops,
                    told.busy,
                    peak_is_low_ ? 1.0 : 0.0,
                    broken_ ? 1.0 : 0.0,
                    store_.waited_s() - validation_waited_s_};
  comm::all_reduce_sum(ranks, std::span(values));
  next_targets_ = values[2];
  beside_ = {.stops = values[3], .busy = values[4]};
  ranks_above_peak_ = values[5];
  ranks_with_broken_ = values[6];
  const double waited_s = values[7] / ranks.world();
  exposed_s_ = waited_s - std::exchange(waited_s_, waited_s);
  return {.loss = values[0], .visible_pairs = values[1]};
}

void RankTrainer::refuse_broken_batch() const {
  if (ranks_with_broken_ == 0) return;
  comm::run_together(world_, [&] {
    if (broken_) std::rethrow_exception(broken_);
  });
}

// Adds rates and memory to the metrics of a step that took so many seconds. A peak that a step was
// faster than is measured again, by all ranks.
StepMetrics RankTrainer::measure(StepMetrics metrics, double visible_pairs, double seconds) {
  if (ranks_above_peak_ > 0 && measurements_left_-- > 0) {
    peak_flops_ = std::max(peak_flops_, measure_matmul_peak(world_, product_dtype(recipe_)));
  }
  const std::int64_t tokens = recipe_.training.seq_len * recipe_.training.global_batch_size;
  const double rank_seconds = seconds * world_.world();
  const double flops = cost_.flops(tokens, static_cast<std::int64_t>(visible_pairs)) / rank_seconds;
  metrics.step_s = seconds;
  metrics.memory_bytes = peak_resident_bytes();
  metrics.exposed_s = exposed_s_;
  metrics.tps = static_cast<double>(tokens) / rank_seconds;
  metrics.ranks = world_.world();
  metrics.tflops = flops * 1e-12;
  metrics.mfu = percent_of_peak(flops, peak_flops_);
  peak_is_low_ = !metrics.mfu && measurements_left_ > 0;
  return metrics;
}

}  // namespace armillary::train
