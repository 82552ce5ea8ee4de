// recording.cpp: the recorder belongs to the rank, by which attention finds it; this object only
// decides how long it is open.
#include "armillary/train/recording.h"

#include "armillary/runtime/rank.h"

namespace armillary::train {

Recording::Recording(comm::Communicator& comm, const std::string& run_folder) : comm_(comm) {
  if (run_folder.empty()) return;
  runtime::Rank& rank = runtime::Rank::of(comm);
  rank.record_in(run_folder);
  recorder_ = rank.recorder();
  // All ranks have the same problems, so one of them writes the file.
  if (comm.rank() == 0) problems_ = std::make_unique<recorder::ProblemLog>(run_folder);
}

void Recording::set_activity(recorder::Activity activity) const {
  if (recorder_ == nullptr) return;
  activity.group = runtime::Rank::of(comm_).recorded_group(comm_);
  recorder_->set_activity(activity);
}

Recording::~Recording() {
  if (recorder_ != nullptr) runtime::Rank::of(comm_).stop_recording();
}

}  // namespace armillary::train
