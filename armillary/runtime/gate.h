// gate.h: a condition from outside the plan that all messages of a run wait for.
//
// Example: no tile may move before all ranks are known to make the same call
// (attention/agreement.h). Compute ops that need no message run meanwhile.
#pragma once

namespace armillary::runtime {

/// A gate is closed at first and stays open once it has opened. An exception of either function
/// ends the run. Threads: only the thread of the run.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  virtual ~Gate() = default;

  virtual bool is_open() = 0;  ///< does not wait
  virtual void wait() = 0;     ///< returns when the gate is open
};

}  // namespace armillary::runtime
