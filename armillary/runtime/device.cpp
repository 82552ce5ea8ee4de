// device.cpp: the CPU as a device without lanes: an op runs in the call that starts it.
#include "armillary/runtime/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "armillary/kernel/cpu_kernel.h"

namespace armillary::runtime {
namespace {

/// Runs each op inside start(). A null event means that the op has run.
class CpuDevice : public Device {
 public:
  at::Device place() const override { return at::kCPU; }
  EventHandle start(plan::Lane /*lane*/, Work& work, int op) override {
    work.run(op);
    return nullptr;
  }
  void drain(const Work& /*work*/) noexcept override {}

 private:
  bool is_done(const Event& /*event*/) override { return true; }
  bool wait_for(const Event& /*event*/, double /*seconds*/) override { return true; }
};

}  // namespace

const kernel::Kernel& Device::kernel() const {
  return kernel::cpu_kernel();
}

at::Tensor Device::allocate(std::int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(place()));
}

Device& cpu_device() {
  static CpuDevice device;
  return device;
}

}  // namespace armillary::runtime
