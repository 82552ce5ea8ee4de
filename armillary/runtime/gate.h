// gate.h: what the messages of a run wait for, beside what the plan says.
#pragma once

namespace armillary::runtime {

/// Closed until something outside the plan has happened, such as that all ranks agree on what runs.
/// Once open, it stays open. One thread, that of the run. What either function throws ends the run.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  virtual ~Gate() = default;

  virtual bool is_open() = 0;  ///< Looks, and does not wait.
  virtual void wait() = 0;     ///< Until it is open.
};

}  // namespace armillary::runtime
