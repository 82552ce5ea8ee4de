#include "armillary/runtime/context.h"

#include <utility>

namespace armillary::runtime {

void Context::use(std::shared_ptr<Device> device) {
  executions_ = {};  // their memory lies on the device before
  device_ = std::move(device);
}

}  // namespace armillary::runtime
