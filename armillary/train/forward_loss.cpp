// Passes in which all ranks along dp take part, whoever has a sequence left: gathers of parameters
// are collective over them. A rank that has none runs the last one again.
#include "armillary/train/forward_loss.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <span>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

namespace armillary::train {

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

EvalResult forward_loss(const ForwardParts& parts, const Data& data, std::int64_t sequences) {
  const comm::Mesh& mesh = parts.mesh;
  const std::int64_t dp = mesh.size(MeshAxis::Dp);
  double loss = 0;
  double targets = 0;
  for (std::int64_t first = 0; first < sequences; first += dp) {
    const std::int64_t mine = first + mesh.index(MeshAxis::Dp);
    const Microbatch task = read_pass(parts, data, std::min(mine, sequences - 1));
    const double of_task = forward_pass(parts, task, task.batch).item().toDouble();
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
