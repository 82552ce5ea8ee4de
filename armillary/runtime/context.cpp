#include "armillary/runtime/context.h"

#include <utility>

#include "armillary/core/error.h"
#include "armillary/proof/digest.h"

namespace armillary::runtime {

void Context::use(std::shared_ptr<Device> device) {
  if (busy_) {
    fail<InvalidArgument>(
        "context: the device was changed while a call is in progress; finish it first");
  }
  executions_ = {};  // idle executions have memory on the previous device
  device_ = std::move(device);
}

void Context::record_in(const std::string& run_folder, const comm::Communicator& comm) {
  recorder_ = std::make_unique<recorder::Recorder>(
      run_folder,
      recorder::Recorder::Rank{
          .world = comm.world(), .rank = comm.rank(), .program = std::string(proof::version())});
}

}  // namespace armillary::runtime
