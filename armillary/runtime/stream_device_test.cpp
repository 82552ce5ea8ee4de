// Streams and events of a driver that stands in for a GPU: the test says when an event is over.
// tests/gpu/ runs strategies on a real one.
#include "armillary/runtime/stream_device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr at::DeviceType kType = at::DeviceType::PrivateUse1;
const at::Device kPlace(kType, 1);
constexpr c10::StreamId kCallerStream = 100;

/// Calls that the stand-in has met, and what it is to answer. The test has one thread.
struct Told {
  c10::StreamId current = kCallerStream;
  c10::StreamId streams = 0;             ///< made so far
  std::vector<c10::StreamId> events;     ///< the stream of each event
  std::size_t over = 0;                  ///< events that are over: the first ones
  std::vector<c10::StreamId> emptied{};  ///< streams that somebody has waited for
  bool fails = false;                    ///< a kernel has failed
};
Told told;

/// A driver with 2 devices.
class StandIn final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return kType; }
  at::Device exchangeDevice(at::Device /*device*/) const override { return kPlace; }
  at::Device getDevice() const override { return kPlace; }
  void setDevice(at::Device /*device*/) const override {}
  void uncheckedSetDevice(at::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  c10::Stream getStream(at::Device device) const override { return stream(device, told.current); }
  c10::Stream getNewStream(at::Device device, int /*priority*/) const override {
    return stream(device, ++told.streams);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(told.current, next.id()));
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    told.events.push_back(on.id());
    // Its number, from 1.
    *event = reinterpret_cast<void*>(told.events.size());  // NOLINT(performance-no-int-to-ptr)
  }
  bool queryEvent(void* event) const override {
    if (told.fails) throw std::runtime_error("illegal memory access");
    return reinterpret_cast<std::size_t>(event) <= told.over;
  }
  void destroyEvent(void* /*event*/, const c10::DeviceIndex /*device*/) const noexcept override {}
  void synchronizeStream(const c10::Stream& on) const override {
    told.emptied.push_back(on.id());
    if (told.fails) throw std::runtime_error("illegal memory access");
  }

 private:
  static c10::Stream stream(at::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, StandIn);

/// Notes the stream on which each op queues its kernels.
struct Noted : Work {
  std::vector<std::pair<int, c10::StreamId>> ops;
  void run(int op) override {
    if (op < 0) throw std::runtime_error("no such op");
    ops.emplace_back(op, told.current);
  }
};

class StreamDeviceTest : public testing::Test {
 protected:
  StreamDeviceTest() { told = {}; }
  std::shared_ptr<Device> device_ = stream_device(kPlace);
  Noted work_;
};

TEST_F(StreamDeviceTest, HasAStreamForEachLane) {
  EXPECT_EQ(device_->place(), kPlace);
  for (const auto& [lane, op] : {std::pair<plan::Lane, int>(0, 7), {3, 8}, {0, 9}})
    device_->start(lane, work_, op);
  EXPECT_THAT(work_.ops, ElementsAre(std::pair(7, 1), std::pair(8, 2), std::pair(9, 1)));
  EXPECT_THAT(told.events, ElementsAre(1, 2, 1));
  EXPECT_EQ(told.current, kCallerStream) << "the caller's stream is current again";
}

TEST_F(StreamDeviceTest, AnOpIsDoneWhenItsEventIs) {
  const EventHandle first = device_->start(0, work_, 0);
  const EventHandle second = device_->start(0, work_, 1);
  EXPECT_FALSE(device_->is_complete(first));
  EXPECT_FALSE(device_->wait(first, 1e-4));
  told.over = 1;
  EXPECT_TRUE(device_->is_complete(first));
  EXPECT_TRUE(device_->wait(first, 0));
  EXPECT_FALSE(device_->is_complete(second));
}

TEST_F(StreamDeviceTest, TheCallersWorkIsThatOfItsCurrentStream) {
  const EventHandle earlier = device_->caller_event();
  EXPECT_THAT(told.events, ElementsAre(kCallerStream));
  EXPECT_FALSE(device_->is_complete(earlier));
  told.over = 1;
  EXPECT_TRUE(device_->is_complete(earlier));
}

TEST_F(StreamDeviceTest, WaitsForAllStreamsBeforeMemoryGoes) {
  device_->start(0, work_, 0);
  device_->start(5, work_, 1);
  device_->drain(work_);
  EXPECT_THAT(told.emptied, ElementsAre(1, 2));
}

TEST_F(StreamDeviceTest, AnErrorOfTheDriverIsThrownAndDoesNotKeepItFromDraining) {
  const EventHandle event = device_->start(0, work_, 0);
  device_->start(1, work_, 1);
  told.fails = true;
  EXPECT_THAT([&] { device_->is_complete(event); },
              ThrowsMessage<std::runtime_error>("illegal memory access"));
  device_->drain(work_);
  EXPECT_THAT(told.emptied, ElementsAre(1, 2));
}

TEST_F(StreamDeviceTest, AnOpThatThrowsLeavesTheCallersStreamCurrent) {
  EXPECT_THROW(device_->start(0, work_, -1), std::runtime_error);
  EXPECT_EQ(told.current, kCallerStream);
  EXPECT_TRUE(told.events.empty());
}

TEST_F(StreamDeviceTest, RefusesPlacesWithoutStreams) {
  const auto refusal = [](at::Device place, const char* text) {
    EXPECT_THAT([&] { stream_device(place); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refusal(at::kCPU, "stream_device: cpu; a device with streams and its number");
  refusal(at::Device(kType), "a device with streams and its number, such as cuda:0, is required");
  refusal(at::Device(kType, 2), "this torch has 2 of that kind here");
  refusal(at::Device(at::kMPS, 0), "stream_device: mps:0; this torch has 0 of that kind here");
}

}  // namespace
}  // namespace armillary::runtime
