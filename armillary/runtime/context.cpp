#include "armillary/runtime/context.h"

#include <utility>

#include "armillary/core/error.h"

namespace armillary::runtime {

void Context::use(std::shared_ptr<Device> device) {
  if (busy_) {
    fail<InvalidArgument>(
        "context: the device was changed while a call is in progress; finish it first");
  }
  executions_ = {};  // idle executions have memory on the previous device
  device_ = std::move(device);
}

}  // namespace armillary::runtime
