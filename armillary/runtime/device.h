// device.h: the place where a run computes: memory, and in-order lanes of work that may end after
// the call that started it has returned.
//
//   start(lane, work, op) --> [op op op] one after the other on the lane --> done(event)
//
// The executor starts ops and asks their events; it never takes the return of a function for the
// end of an op. On the CPU an op runs inside start() and has no event; on a GPU a lane is a stream.
// The executor starts its ops on the lane plan::kCompute. Messages belong to the communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/plan.h"

namespace armillary::runtime {

/// The work that a device runs, op by op. `run` may be called on a thread of the device.
class Work {
 public:
  virtual void run(int op) = 0;

 protected:
  ~Work() = default;
};

/// Completion of one started op, or of work of the caller. Each device derives its own: a stream
/// has an event of its driver, a thread a flag.
class Event {
 public:
  virtual ~Event() = default;
};
/// A null handle counts as done.
using EventHandle = std::shared_ptr<const Event>;

/// The device of one rank. Threads: only the thread of the rank calls it; `work` may run on others.
/// runtime/testing/late_device.h is a second implementation, for tests: one thread a lane.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// The device of all tensors that its work reads and writes.
  virtual at::Device place() const = 0;

  /// The attention kernel of this device; lives as long as the process. Default: cpu_kernel().
  virtual const kernel::Kernel& kernel() const;

  /// Memory for slots, aligned to 64 bytes: [bytes] of kByte. @throws as at::empty.
  virtual at::Tensor allocate(std::int64_t bytes);

  /// Runs `work.run(op)` after everything that was started on this lane before. Ops of one lane
  /// never run at the same time; ops of different lanes may. `work` must live until the event is
  /// done or drain() has returned. @throws what the work throws, if it runs inside this call.
  virtual EventHandle start(plan::Lane lane, Work& work, int op) = 0;

  /// An event after all work on tensors of this device that the caller has queued so far outside of
  /// the device's lanes, such as kernels on the current stream that compute an input. Null, the
  /// default, if there is none that is not done, as on the CPU. The executor takes one such event
  /// before its first op, which waits for it, as earlier work may use the memory of the run; and
  /// one with every input, which is read when the event is done.
  virtual EventHandle caller_event() { return nullptr; }

  /// Whether the op has finished. Does not wait. @throws what the work threw.
  bool is_complete(const EventHandle& event) { return event == nullptr || is_done(*event); }

  /// Waits until the op has finished, but not longer than `seconds`. Returns whether it has.
  /// @throws as is_complete().
  bool wait(const EventHandle& event, double seconds) {
    return event == nullptr || wait_for(*event, seconds);
  }

  /// Drops the ops of `work` that have not begun, and returns when none of them runs any more.
  virtual void drain(const Work& work) noexcept = 0;

 private:
  virtual bool is_done(const Event& event) = 0;
  virtual bool wait_for(const Event& event, double seconds) = 0;
};

/// The CPU: work runs inside start(). It has no state, so all threads share one object.
Device& cpu_device();

}  // namespace armillary::runtime
