// Passes in which all ranks along dp take part, whoever has a sequence left: gathers of parameters
// are collective over them. A rank that has none runs the last one again.
#include "armillary/train/forward_loss.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <span>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/microbatch.h"
#include "armillary/train/same_recipe.h"

namespace armillary::train {
namespace {

/// This rank's tokens of a sequence.
Microbatch read_sequence(const LossParts& parts, const Data& data, std::int64_t index) {
  const comm::Communicator& comm = parts.mesh.along(MeshAxis::Cp);
  Microbatch task;
  comm::run_together(parts.mesh.world(), [&] {
    task = read_microbatch(data, index, parts.model, parts.recipe,
                           {parts.attention, comm.rank(), comm.world()});
  });
  // Attention compares the sequences along cp.
  if (parts.tensor_parallel) {
    expect_same_data(parts.mesh.along(MeshAxis::Tp), task.digest, "sequences");
  }
  return task;
}

/// This rank's part of the loss of a pass.
double pass_loss(const LossParts& parts, const Microbatch& task) {
  const at::NoGradGuard no_grad;
  const plan::Problem& problem = task.problem;
  if (parts.recording != nullptr) parts.recording->begin_problem(problem, parts.strategy);
  const model::ModelInputs inputs{
      .batch = task.batch,
      .positions_L = task.positions_L,
      .attends = attend_over_ranks(parts.mesh.along(MeshAxis::Cp),
                                   {.mask = problem.mask,
                                    .layout = problem.layout,
                                    .strategy = parts.strategy,
                                    .transfer_dtype = problem.transfer_dtype,
                                    .sequence = task.digest,
                                    .proofs = parts.recipe.parallelism.proofs}),
      .tensor_parallel = parts.tensor_parallel,
      .expert_parallel = parts.expert_parallel};
  Store& store = parts.store;
  const auto use = [&store](int unit) {
    if (unit > 0) store.release(unit - 1);
    return store.use(unit);
  };
  const at::Tensor loss = model::run_units(parts.model, use, inputs);
  store.release(store.units() - 1);
  return loss.item().toDouble();
}

}  // namespace

std::int64_t checked_sequences(std::string_view where, const Data& data, std::int64_t count) {
  const std::int64_t there = data.sequences_per_epoch();
  if (there == 0 && count < 1) {
    fail<InvalidArgument>("{} {} of data without an end; at least 1 is required", where, count);
  }
  if (count < 0 || (there > 0 && count > there)) {
    fail<InvalidArgument>("{} {} of data with {}; at most that many are required; nearest: {}",
                          where, count, there, count < 0 ? 1 : there);
  }
  return count == 0 ? there : count;
}

std::int64_t validation_sequences(const TrainingOptions& training, const Data& data) {
  return checked_sequences("train: training.validation_sequences =", data,
                           training.validation_sequences);
}

EvalResult forward_loss(const LossParts& parts, const Data& data, std::int64_t sequences) {
  const comm::Mesh& mesh = parts.mesh;
  const std::int64_t dp = mesh.size(MeshAxis::Dp);
  double loss = 0;
  double targets = 0;
  for (std::int64_t first = 0; first < sequences; first += dp) {
    const std::int64_t mine = first + mesh.index(MeshAxis::Dp);
    const Microbatch task = read_sequence(parts, data, std::min(mine, sequences - 1));
    const double of_task = pass_loss(parts, task);
    if (mine >= sequences) continue;
    loss += of_task;
    // Ranks along tp have the same tokens, and each a part of the loss.
    if (mesh.index(MeshAxis::Tp) == 0) targets += static_cast<double>(task.targets);
  }
  std::array sums{loss, targets};
  comm::all_reduce_sum(mesh.world(), std::span(sums));
  return {.loss = sums[0] / std::max(sums[1], 1.0),
          .sequences = sequences,
          .targets = static_cast<std::int64_t>(sums[1])};
}

}  // namespace armillary::train
