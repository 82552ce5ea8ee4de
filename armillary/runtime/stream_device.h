// stream_device.h: a device whose lanes are streams of a driver, such as a GPU.
//
//   start(lane, work, op) --> work.run(op) queues kernels on the lane's stream --> event after them
//
// It is written against torch's interface of streams and events (c10), which each accelerator of
// torch implements, so it needs no header of a driver and runs with any torch that has the device.
#pragma once

#include <memory>

#include "armillary/runtime/device.h"

namespace armillary::runtime {

/// The device at `place`, such as cuda:0, for one rank; Rank::use() takes it. One stream for
/// each lane, made when the lane starts its first op. Its kernel is the reference
/// (kernel/reference.h), which is exact and slow. Messages need a communicator for memory of this
/// device, such as that of run_on_nccl().
///
/// drain() cannot take back kernels that are queued: it waits for them.
/// @throws InvalidArgument if `place` is the CPU or has no index, or if this torch has no such
/// device.
std::shared_ptr<Device> stream_device(at::Device place);

}  // namespace armillary::runtime
