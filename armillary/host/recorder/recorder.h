// recorder.h: the flight recorder of one rank: its last ops and its present work, in a file that is
// mapped into memory. The file can be read while the run goes on, and after the process was killed
// (reader.h); `armillary explain RUN` says who waited for whom (diagnosis.h).
//
//   executor  --start, done, waits--> Recorder --> RUN/flight/rank-0003.bin
//   trainer   --step, activity------>     |
//   attention --begin_call---------->     '-- pages of the file: they outlive the process
//
// Cost: some stores an op, and a look at the clock for each time in which work was done; no system
// call, no allocation.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "armillary/plan/plan.h"

namespace armillary::plan {
struct Vocabulary;
}

namespace armillary::recorder {

/// Vocabularies whose words are kept; more are refused.
inline constexpr int kWordsKept = 4;
/// Groups of ranks that are kept; further ones are recorded as all ranks of the run.
inline constexpr int kGroupsKept = 16;
inline constexpr int kOpsKept = 1000;  ///< A new op takes the place of the op 1,000 before it.

/// Nanoseconds of the monotonic clock, which is that of all times of a recorder.
std::int64_t monotonic_ns() noexcept;

/// `<run folder>/flight/rank-0003.bin`; more digits from rank 10,000 on.
std::string flight_path(const std::string& run_folder, int rank);

/// A call, as its ops are recorded under it. Its bytes are copied into the file, so it has no
/// padding.
struct BegunCall {
  std::int64_t step = 0;    ///< Training step, 0 before the first.
  std::int32_t number = 0;  ///< In the step, from 1.
  std::uint16_t words = 0;  ///< Recorder::words() of its vocabulary.
  std::uint16_t pass = 0;   ///< Index into the passes of the vocabulary.
};

/// An op as it is recorded when it starts. Its bytes are copied into the file, so it has no
/// padding.
struct StartedOp {
  plan::Kind kind;
  std::uint8_t words = 0;  ///< Recorder::words() of its vocabulary.
  std::int16_t lane = 0;
  std::int32_t plan_step = 0;
  std::int32_t index = 0;  ///< Place in the program of the rank.
  /// The other rank of a message, and its bytes. Other ops have -1 and 0.
  std::int32_t peer = -1;
  std::int64_t bytes = 0;
};

/// Work outside of attention. A *collective* one goes on when all ranks of its group have come to
/// it; ranks are compared by the number of their activity in the step, so an activity that only
/// some ranks have belongs at the end of a step.
struct Activity {
  std::string_view name;  ///< Such as "optimizer"; 47 bytes are kept.
  std::int64_t bytes = 0;
  bool collective = false;
  std::uint8_t group = 0;  ///< Recorder::group(); 0: all ranks of the run.
};

/// Reason for which a rank waits in attention.
enum class Wait : std::uint8_t {
  None,
  Messages,   ///< For one of the messages that are started and not done.
  Device,     ///< For its own device.
  Agreement,  ///< Until all ranks of the group have made the same call.
  Proof,      ///< Until all ranks of the group have proved the plan.
};

/// Which messages, or ranks, a wait is for.
struct WaitDetail {
  std::int32_t call = 0;   ///< Messages: those of the call with this number; 0: all.
  std::uint8_t group = 0;  ///< Agreement, Proof: Recorder::group(); 0: all ranks of the run.
};

/// How a rank ended. Running also stands for a process that was killed.
enum class End : std::uint8_t {
  Running,
  Done,
  Failed,          ///< For a reason of its own.
  FailedWithPeers  ///< With a CommError: a peer failed, or did not answer in time.
};

/// Facts about the rank that stand in its file.
struct RecordedRank {
  int world = 1;
  int rank = 0;
  std::string program = {};  ///< Version of the program; 31 bytes are kept.
};

/// The file of one rank, open for writing. The caller's functions after the constructor, but
/// words(), never throw and never wait. Threads: that of the rank.
class Recorder {
 public:
  /// Makes the file and reserves its space on the disk, so that a full disk is an error here and
  /// not a signal later. A file that is there is replaced when the first step or call begins, and
  /// stays if none does: a run that is refused leaves the record of the one before. A process that
  /// still writes the old file goes on undisturbed. Requires 0 <= rank < world.
  /// @throws IoError naming the path, if the folder or the file cannot be made or the disk is full;
  /// no new file is left then.
  Recorder(const std::string& run_folder, const RecordedRank& rank);
  /// Unmaps the file, which stays. It does not count as an end: see end().
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Present work.

  /// A step of a trainer begins, numbered from 1. Calls and activities are counted anew.
  void begin_step(std::int64_t step) noexcept;
  /// The rank goes on to other work outside of attention. An activity lasts until the next one.
  void set_activity(const Activity& activity) noexcept;
  /// A pass of a layer begins: its number in the step, from 1, is one more than that of the call
  /// before, which may go on. `strategy` keeps 47 bytes; `pass` is an index into the passes of the
  /// vocabulary `words`, a number that words() has returned.
  BegunCall begin_call(std::string_view strategy, std::uint8_t words, int pass) noexcept {
    return begin_call(strategy, words, pass, monotonic_ns());
  }

  /// The number of a vocabulary in the file, where its words stand from the first call on.
  /// @throws InternalError for a fifth one.
  std::uint8_t words(const plan::Vocabulary& words);

  /// The number of a group in the file, where its ranks stand from the first call on; 0 for all
  /// ranks of the run, and for a 17th group. `ranks` are those of the run, each once.
  std::uint8_t group(std::span<const int> ranks) noexcept;

  // Ops.

  /// Returns the number of the op, for finish(). It is one of the call that began last.
  std::uint64_t start(const StartedOp& op) noexcept;
  /// Does nothing if another op has taken the place of this one.
  void finish(std::uint64_t op) noexcept { finish(op, monotonic_ns()); }

  /// The same, at a time of monotonic_ns(): one look at the clock serves events with nothing
  /// between them.
  BegunCall begin_call(std::string_view strategy, std::uint8_t words, int pass,
                       std::int64_t at_ns) noexcept;
  std::uint64_t start(const StartedOp& op, const BegunCall& call, std::int64_t at_ns) noexcept;
  void finish(std::uint64_t op, std::int64_t at_ns) noexcept;

  /// The rank waits from now on, until resume(). A rank that waits for messages waits for all of
  /// the call that are started and not done.
  void wait(Wait why, const WaitDetail& detail = {}) noexcept;
  void resume() noexcept;

  // The end. Without one of these the file says that the rank runs, or was killed.

  /// The rank has done all its work.
  void end() noexcept;
  /// The rank ends with an error, of the kind Failed or FailedWithPeers. `reason` keeps 511 bytes.
  /// Only the first end counts.
  void fail(End kind, std::string_view reason) noexcept;

 private:
  struct Mapping;  ///< The mapped file and the status as it was written last.
  std::unique_ptr<Mapping> mapping_;
  std::uint64_t next_ = 0;  ///< Number of the next op.
};

/// Returns action(); `recorder`, if there is one, says that the rank waits meanwhile. A rank that
/// throws out of a wait is left as one that waits: that is how its run ended.
template <class Action>
decltype(auto) while_waiting(Recorder* recorder, Wait why, const Action& action,
                             const WaitDetail& detail = {}) {
  if (recorder == nullptr) return action();
  recorder->wait(why, detail);
  struct Resume {
    Recorder* recorder;
    int exceptions = std::uncaught_exceptions();
    ~Resume() {
      if (std::uncaught_exceptions() == exceptions) recorder->resume();
    }
  } resume{recorder};
  return action();
}

}  // namespace armillary::recorder
