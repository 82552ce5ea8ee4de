// resting_executions.h: executions between two runs, so that the layers and steps of a model share
// slots and operands.
#pragma once

#include <memory>
#include <vector>

#include "armillary/runtime/executor.h"

namespace armillary::runtime {

/// Those of one rank on one device. The one that was used longest ago goes first: packed
/// documents bring a new program every step.
class RestingExecutions {
 public:
  /// One that rests, made ready, or a new one.
  std::unique_ptr<Execution> take(const std::shared_ptr<const CompiledProgram>& program,
                                  comm::Communicator& comm, ExecutionOptions options);

  /// Keeps one that has finished. One that failed must not come back.
  void give_back(std::unique_ptr<Execution> execution);

 private:
  std::vector<std::unique_ptr<Execution>> resting_;
  at::Tensor slots_;  ///< Undefined while an execution has them.
};

}  // namespace armillary::runtime
