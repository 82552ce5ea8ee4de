#include "armillary/train/recording.h"

#include "armillary/runtime/context.h"

namespace armillary::train {

Recording::Recording(comm::Communicator& comm, const std::string& run_folder) : comm_(comm) {
  if (run_folder.empty()) return;
  runtime::Context& context = runtime::Context::of(comm);
  context.record_in(run_folder, comm);
  recorder_ = context.recorder();
  if (comm.rank() == 0) problems_ = std::make_unique<recorder::ProblemLog>(run_folder);
}

Recording::~Recording() {
  if (recorder_ != nullptr) runtime::Context::of(comm_).stop_recording();
}

}  // namespace armillary::train
