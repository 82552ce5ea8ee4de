// The saver is a machine of three phases that all ranks go through in the same steps. Its thread
// communicates with nobody: it works on copies, and its end is seen by busy().
#include "armillary/train/checkpoint/saver.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/train/checkpoint/folder.h"

namespace armillary::train {

CheckpointSaver::CheckpointSaver(comm::Communicator& comm, io::FileSystem& files,
                                 SaverOptions options)
    : comm_(comm), files_(files), options_(std::move(options)) {
  prepare_folder();
}

void CheckpointSaver::prepare_folder() {
  comm::run_together(comm_, [&] {
    io::make_folders(files_, options_.folder);
    if (comm_.rank() == 0) remove_temporaries(files_, options_.folder);
  });
  // A file of each rank: a folder may be writable on one host only.
  comm::run_together(comm_, [&] {
    const std::string probe = fmt::format("{}/rank-{}.tmp", options_.folder, comm_.rank());
    io::write_synced(files_, probe, "x");
    files_.remove(probe);
  });
}

double CheckpointSaver::busy() const {
  const bool at_work =
      work_.valid() && work_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  return (at_work ? 1 : 0) + (phase_ == Phase::Idle ? 0 : kUnderWay);
}

// A thread of its own, not one of std::async, whose future would wait in its destructor: a rank
// that fails must not wait for its disk.
void CheckpointSaver::start(std::function<void()> work) {
  std::packaged_task<std::string()> task([work = std::move(work)]() -> std::string {
    try {
      work();
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  });
  work_ = task.get_future();
  std::thread(std::move(task)).detach();
}

void CheckpointSaver::advance(double busy_ranks) {
  const double saving = std::floor(busy_ranks / kUnderWay);
  if (saving > 0 && saving < comm_.world()) {
    fail<Error>("checkpoint: {:.0f} of {} ranks save; a save on all ranks is required", saving,
                comm_.world());
  }
  if (busy_ranks == saving * kUnderWay) end_phase();
}

/// The work of this phase is over on all ranks.
void CheckpointSaver::end_phase() {
  if (phase_ == Phase::Idle) return;
  if (work_.valid()) failure_ = work_.get();
  comm::run_together(comm_, [&] {
    if (failure_.empty()) return;
    fail<Error>("checkpoint: step {} is not saved: {}", place_.step, failure_);
  });
  if (phase_ == Phase::Publish) {
    phase_ = Phase::Idle;
    return;
  }
  phase_ = Phase::Publish;
  if (comm_.rank() != 0) return;
  start([&files = files_, place = place_, progress = progress_, options = options_] {
    publish(files, place, progress, options.recipe, options.keep);
  });
}

void CheckpointSaver::save(std::int64_t step, const std::vector<SavedTensor>& tensors,
                           const RunProgress& progress) {
  finish();
  place_ = {.folder = options_.folder, .step = step, .rank = comm_.rank(), .world = comm_.world()};
  progress_ = progress;
  // The only wait of a step: values are copied before the optimizer changes them.
  snapshot_->take(tensors);
  phase_ = Phase::Parts;
  start([&files = files_, place = place_, snapshot = snapshot_] {
    write_part(files, place, snapshot->tensors());
  });
}

void CheckpointSaver::finish() {
  while (phase_ != Phase::Idle) {
    // Half the timeout: the ranks that are done wait for this one.
    const double longest_s = comm_.timeout_s() / 2;
    if (work_.valid() &&
        work_.wait_for(std::chrono::duration<double>(longest_s)) != std::future_status::ready) {
      work_ = {};  // and the thread is left alone
      failure_ = fmt::format("{} is not written after {} s; raise comm.train_timeout_seconds",
                             place_.folder, longest_s);
    }
    end_phase();
  }
}

}  // namespace armillary::train
