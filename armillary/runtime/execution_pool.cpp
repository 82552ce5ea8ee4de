// Keeps executions between runs: found by program, dropped when they were used longest ago.
#include "armillary/runtime/execution_pool.h"

#include <algorithm>
#include <utility>

namespace armillary::runtime {

std::unique_ptr<Execution> ExecutionPool::take(
    const std::shared_ptr<const CompiledProgram>& program, comm::Communicator& comm,
    ExecutionOptions options) {
  const auto entry = std::find_if(idle_.begin(), idle_.end(), [&](const auto& execution) {
    return &execution->program() == program.get();
  });
  // The slots go to this execution; another one taken before give_back() allocates its own.
  const at::Tensor slots = std::exchange(slots_, at::Tensor());
  if (entry == idle_.end()) {
    return std::make_unique<Execution>(program, comm, std::move(options), slots);
  }
  std::unique_ptr<Execution> execution = std::move(*entry);
  idle_.erase(entry);
  execution->restart(comm, std::move(options), slots);
  return execution;
}

void ExecutionPool::give_back(std::unique_ptr<Execution> execution) {
  constexpr std::size_t kMost = 6;  // forward, replay and backward of two kinds of layers
  const at::Tensor slots = execution->release();
  if (!slots_.defined() || slots.numel() > slots_.numel()) slots_ = slots;
  if (idle_.size() == kMost) idle_.erase(idle_.begin());
  idle_.push_back(std::move(execution));
}

}  // namespace armillary::runtime
