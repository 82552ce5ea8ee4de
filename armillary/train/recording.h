// recording.h: the flight recorder of a rank that trains (host/recorder/recorder.h), or none.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "armillary/comm/communicator.h"
#include "armillary/core/error.h"
#include "armillary/host/recorder/problems.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/plan/problem.h"

namespace armillary::train {

/// Opens the recorder of a rank, through which attention of the rank is recorded too, in whichever
/// of its groups, until this object dies. Without a run folder it does nothing. Threads: that of
/// the rank.
class Recording {
 public:
  /// @throws IoError as Recorder.
  Recording(comm::Communicator& comm, const std::string& run_folder);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // As the functions of Recorder; nothing without one.

  void begin_step(std::int64_t step) const {
    if (recorder_ != nullptr) recorder_->begin_step(step);
  }
  /// Collective ones are those of the group that trains.
  void set_activity(recorder::Activity activity) const;

  /// The calls from now on are of this problem. @throws IoError as ProblemLog.
  void begin_problem(const plan::Problem& problem, const std::string& strategy) const {
    if (problems_ != nullptr) problems_->begin(problem, strategy);
  }

  /// The run is refused before it begins: `reason` is that of another rank, or of all.
  void refuse(std::string_view reason) const { fail_with(recorder::End::FailedWithPeers, reason); }

  /// Runs the whole training of the rank, and records how it ends. @throws what `training` throws.
  template <class Training>
  void until_end(const Training& training) const {
    using recorder::End;
    try {
      training();
    } catch (const CommError& error) {
      fail_with(End::FailedWithPeers, error.what());
      throw;
    } catch (const std::exception& error) {
      fail_with(End::Failed, error.what());
      throw;
    }
    if (recorder_ != nullptr) recorder_->end();
  }

 private:
  void fail_with(recorder::End end, std::string_view reason) const {
    if (recorder_ != nullptr) recorder_->fail(end, reason);
  }

  comm::Communicator& comm_;
  recorder::Recorder* recorder_ = nullptr;          ///< The rank owns it; null: none.
  std::unique_ptr<recorder::ProblemLog> problems_;  ///< On rank 0 alone.
};

}  // namespace armillary::train
