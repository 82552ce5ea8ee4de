// Runs ops on the streams of a driver, by way of c10's guards. The thread of the rank queues all
// kernels; no other thread is needed.
#include "armillary/runtime/stream_device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <map>
#include <thread>

#include "armillary/core/error.h"
#include "armillary/kernel/reference.h"

namespace armillary::runtime {
namespace {

/// An event of the driver, recorded behind the kernels of one op.
struct StreamEvent : Event {
  explicit StreamEvent(at::DeviceType type) : of_driver(type) {}
  c10::Event of_driver;
};

class StreamDevice : public Device {
 public:
  explicit StreamDevice(at::Device place) : place_(place), driver_(place.type()) {}

  at::Device place() const override { return place_; }
  const kernel::Kernel& kernel() const override { return kernel::reference(); }

  EventHandle start(plan::Lane lane, Work& work, int op) override {
    const c10::Stream stream = stream_of(lane);
    // Torch queues kernels on the current stream of the thread.
    const c10::StreamGuard guard(stream);
    work.run(op);
    return after(stream);
  }
  EventHandle caller_event() override { return after(driver_.getStream(place_)); }

  void drain(const Work& /*work*/) noexcept override {
    for (const auto& [lane, stream] : streams_) {
      try {
        stream.synchronize();
      } catch (const std::exception&) {  // a kernel failed, so none runs any more
      }
    }
  }

 private:
  c10::Stream stream_of(plan::Lane lane) {
    const auto entry = streams_.find(lane);
    if (entry != streams_.end()) return entry->second;
    return streams_.emplace(lane, driver_.getNewStream(place_)).first->second;
  }
  EventHandle after(const c10::Stream& stream) const {
    auto event = std::make_shared<StreamEvent>(place_.type());
    event->of_driver.record(stream);
    return event;
  }

  bool is_done(const Event& event) override {
    return static_cast<const StreamEvent&>(event).of_driver.query();
  }
  bool wait_for(const Event& event, double seconds) override {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (!is_done(event)) {  // no driver waits with a deadline
      if (Clock::now() >= end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  const at::Device place_;
  const c10::impl::VirtualGuardImpl driver_;
  std::map<plan::Lane, c10::Stream> streams_;
};

}  // namespace

std::shared_ptr<Device> stream_device(at::Device place) {
  if (place.is_cpu() || !place.has_index()) {
    fail<InvalidArgument>(
        "stream_device: {}; a device with streams and its number, such as cuda:0, is required",
        place.str());
  }
  // A build of torch may lack the backend altogether: then there is no guard to ask.
  const bool known = c10::impl::hasDeviceGuardImpl(place.type());
  const int count = known ? c10::impl::VirtualGuardImpl(place.type()).deviceCount() : 0;
  if (place.index() >= count) {
    fail<InvalidArgument>("stream_device: {}; this torch has {} of that kind here", place.str(),
                          count);
  }
  return std::make_shared<StreamDevice>(place);
}

}  // namespace armillary::runtime
