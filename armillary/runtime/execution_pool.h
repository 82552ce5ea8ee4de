// execution_pool.h: idle executions that the layers and steps of a model use again.
//
//   layer 1: take -> run -> give_back      layer 2: take (same program: same bound tensors) -> ..
//
// All executions share the memory of one set of slots, as long as they run one after the other.
#pragma once

#include <memory>
#include <vector>

#include "armillary/runtime/executor.h"

namespace armillary::runtime {

/// The idle executions of one rank on one device: at most six, the last to be given back. Packed
/// documents bring a new program every step, so older ones must go. Threads: that of the rank.
class ExecutionPool {
 public:
  /// Returns an idle execution of this program, restarted, or a new one. It gets the slots of the
  /// pool if they are large enough, and allocates its own otherwise.
  std::unique_ptr<Execution> take(const std::shared_ptr<const CompiledProgram>& program,
                                  comm::Communicator& comm, ExecutionOptions options);

  /// Takes back an execution that has finished, releases its tensors, and keeps the larger slots.
  /// An execution that failed must not be given back.
  void give_back(std::unique_ptr<Execution> execution);

 private:
  std::vector<std::unique_ptr<Execution>> idle_;  ///< in the order of give_back
  at::Tensor slots_;                              ///< undefined while an execution uses them
};

}  // namespace armillary::runtime
