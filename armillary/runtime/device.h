// device.h: where a run computes: memory, and lanes of work that may finish after the call that
// started it.
//
//   start(lane, work, op) --> [op op op] one after the other on the lane --> done(event)
//
// The executor starts ops and looks at their events; it never takes the return of a function for
// the end of an op. On a CPU an op runs inside start() and its event is done at once; on a GPU a
// lane is a stream. The executor gives its ops to the lane of plan::kCompute; messages are the
// communicator's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/plan.h"

namespace armillary::runtime {

/// What a device runs: op by op.
class Work {
 public:
  virtual void run(int op) = 0;

 protected:
  ~Work() = default;
};

/// Work under way. Each device derives its own.
class Event {
 public:
  virtual ~Event() = default;
};
/// An empty one counts as done.
using EventHandle = std::shared_ptr<const Event>;

/// The device of one rank. Threads: one calls it, the rank's; `work` may run on others.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// Where tensors lie that its work takes.
  virtual at::Device place() const = 0;

  /// The kernel that attention runs on it; lives as long as the process. The default: the CPU's.
  virtual const kernel::Kernel& kernel() const;

  /// Memory for slots, aligned to 64 bytes: [bytes] of kByte. @throws as at::empty.
  virtual at::Tensor allocate(std::int64_t bytes);

  /// Runs `work.run(op)` after all that was started on this lane before, and not beside it; lanes
  /// are independent. `work` must live until the event is done or drain() has returned.
  /// @throws what the work throws, if it ran inside the call.
  virtual EventHandle start(plan::Lane lane, Work& work, int op) = 0;

  /// Whether the work has run. Does not wait. @throws what the work threw.
  bool done(const EventHandle& event) { return event == nullptr || is_done(*event); }

  /// Returns when the work has run, or after `seconds`; whether it has. @throws as done().
  bool wait(const EventHandle& event, double seconds) {
    return event == nullptr || wait_for(*event, seconds);
  }

  /// Drops what has not begun of `work`, and returns when nothing of it runs any more.
  virtual void drain(const Work& work) noexcept = 0;

 private:
  virtual bool is_done(const Event& event) = 0;
  virtual bool wait_for(const Event& event, double seconds) = 0;
};

/// The CPU: work runs inside start(). One for all threads: it has no state.
Device& cpu_device();

}  // namespace armillary::runtime
