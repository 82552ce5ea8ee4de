// saver.h: one rank's part in saving, beside the steps of training.
//
//   step s     save(): copy of the rank's tensors --> a thread writes it       phase Parts
//   step s+1   busy() --summed over the ranks, beside the loss--> advance()
//   ..         all parts are there: a thread of rank 0 publishes             phase Publish
//   ..         it is published                                               phase Idle
//
// The sums are equal on all ranks, so all know in the same step that a phase is over; they then
// exchange how it ended. A rank that cannot write ends all ranks there, with its reason.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/io/file_system.h"
#include "armillary/train/checkpoint/write.h"

namespace armillary::train {

struct SaverOptions {
  std::string folder;     ///< The folder of all checkpoints.
  std::int64_t keep = 0;  ///< Newest checkpoints that are kept; 0: all.
  std::string recipe;     ///< Text of recipe.toml.
};

/// One per rank; all ranks make the same calls. Threads: that of the rank, and one that writes.
/// @throws Error from advance(), save() and finish() on every rank if a rank could not write, or
/// wrote in finish() for longer than half the timeout of `comm`: the text names step, rank, path
/// and reason. An object that dies earlier leaves its thread alone, which works on memory of its
/// own: the checkpoint is then not published, and the next run removes what is there.
class CheckpointSaver {
 public:
  /// Prepares the folder: makes it, removes temporaries that a crash left, and tries on every rank
  /// whether it can be written. `comm` must outlive the saver, `files` its threads. Collective.
  /// @throws IoError on every rank.
  CheckpointSaver(comm::Communicator& comm, io::FileSystem& files, SaverOptions options);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// 1 if the thread of this rank is at work, and kUnderWay more while a save is under way; to be
  /// summed over the ranks.
  double busy() const;
  /// Takes notice of the sum. Communicates only if it ends a phase: an all_gather of 16 bytes.
  /// @throws Error on every rank if a save is under way on some of them alone.
  void advance(double busy_ranks);

  /// Begins to save. Returns when `tensors`, those that this rank writes, are copied. If an earlier
  /// save is under way, waits for it first, collectively. `progress` counts on rank 0.
  void save(std::int64_t step, const std::vector<SavedTensor>& tensors,
            const RunProgress& progress);

  /// Returns when nothing is under way. Collective.
  void finish();

 private:
  enum class Phase : std::uint8_t { Idle, Parts, Publish };
  static constexpr double kUnderWay = 1 << 20;  ///< More than ranks.

  void prepare_folder();
  void end_phase();
  void start(std::function<void()> work);

  comm::Communicator& comm_;
  io::FileSystem& files_;
  SaverOptions options_;
  Phase phase_ = Phase::Idle;
  WritePlace place_;
  RunProgress progress_;
  /// Shared with the thread, which may outlive this object.
  std::shared_ptr<Snapshot> snapshot_ = std::make_shared<Snapshot>();
  std::future<std::string> work_;  ///< Gives the reason why it failed, or an empty text.
  std::string failure_;            ///< The same, when the work is over.
};

}  // namespace armillary::train
