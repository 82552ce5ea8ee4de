#include "armillary/train/recording.h"

#include "armillary/runtime/context.h"

namespace armillary::train {

Recording::Recording(comm::Communicator& comm, const std::string& run_folder) : comm_(comm) {
  if (run_folder.empty()) return;
  runtime::Context& context = runtime::Context::of(comm);
  context.record_in(run_folder, comm);
  recorder_ = context.recorder();
}

Recording::~Recording() {
  if (recorder_ != nullptr) runtime::Context::of(comm_).stop_recording();
}

}  // namespace armillary::train
