#include "armillary/runtime/resting_executions.h"

#include <algorithm>
#include <utility>

namespace armillary::runtime {

std::unique_ptr<Execution> RestingExecutions::take(
    const std::shared_ptr<const CompiledProgram>& program, comm::Communicator& comm,
    ExecutionOptions options) {
  const auto found = std::find_if(resting_.begin(), resting_.end(), [&](const auto& execution) {
    return &execution->program() == program.get();
  });
  const at::Tensor slots = std::exchange(slots_, at::Tensor());
  if (found == resting_.end()) {
    return std::make_unique<Execution>(program, comm, std::move(options), slots);
  }
  std::unique_ptr<Execution> execution = std::move(*found);
  resting_.erase(found);
  execution->restart(comm, std::move(options), slots);
  return execution;
}

void RestingExecutions::give_back(std::unique_ptr<Execution> execution) {
  constexpr std::size_t kMost = 6;  // two kinds of layers: forward, replay and backward of each
  const at::Tensor slots = execution->release();
  if (!slots_.defined() || slots.numel() > slots_.numel()) slots_ = slots;
  if (resting_.size() == kMost) resting_.erase(resting_.begin());
  resting_.push_back(std::move(execution));
}

}  // namespace armillary::runtime
