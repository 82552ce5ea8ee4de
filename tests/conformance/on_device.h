// on_device.h: the suite's memory on a device: a communicator that moves every message and array
// from and to memory of the device, and lets the engine under test see that alone.
//
//   test --host memory--> OnDevice --copy, device memory--> engine
#pragma once

#include <functional>
#include <memory>

#include "armillary/comm/communicator.h"
#include "armillary/comm/nccl/api.h"

namespace armillary::comm {

/// Memory of a device, and copies that are over when they return.
class DeviceCopies {
 public:
  DeviceCopies(NcclApi& api, int device) : api_(api), device_(device), stream_(api.make_stream()) {}
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;
  ~DeviceCopies() { api_.drop_stream(stream_); }

  int device() const { return device_; }
  /// Memory with the shape of `part`, its gaps included.
  Strided allocate(const Strided& part);
  void release(const Strided& part);
  void copy(const Strided& from, const Strided& to);

 private:
  void wait();

  NcclApi& api_;
  const int device_;
  const GpuStream stream_;
};

/// One rank's end; `inner` takes memory of the device of `copies`, which outlives this object.
std::unique_ptr<Communicator> on_device(Communicator& inner, DeviceCopies& copies);

}  // namespace armillary::comm
