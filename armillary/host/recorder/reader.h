// reader.h: reads flight files, of a run that is over or goes on.
//
// A file is read while others write to it. An op that is replaced meanwhile is read again; an op
// that a killed process had begun to write is left out, and counted in `torn`.
//
//   RUN/flight/rank-0003.bin --read_flight--> Flight, which holds values only
//   RUN/flight/              --read_run-----> RecordedRun --diagnose (diagnosis.h)--> the cause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "armillary/host/recorder/process_state.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/plan/plan.h"

namespace armillary::recorder {

/// One op. Times are nanoseconds of the monotonic clock of its host; Flight::wall_ns converts them.
struct RecordedOp {
  /// Ops of a rank are numbered from 0, in the order in which they started.
  std::uint64_t number = 0;
  bool complete = false;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  ///< 0 unless done.
  /// Training step, 0 before the first; and the number of the call in it, from 1 (begin_call).
  std::int64_t step = 0;
  int call = 0;
  std::string pass;  ///< Name of the pass, as the vocabulary of its call has it.
  StartedOp op;
  std::string kind;  ///< Name of the kind, as its vocabulary has it.

  bool is_send() const { return op.kind == plan::kSend; }
  /// Whether the op has a peer and bytes.
  bool is_message() const { return is_send() || op.kind == plan::kRecv; }
};

/// Work of a rank outside of single ops. The pass and the strategy are those of the call that began
/// last; both are empty before the first call, the activity before the first activity.
struct RecordedWork {
  /// Start of this work, of the monotonic clock.
  std::int64_t since_ns = 0;
  std::int64_t step = 0;
  int call = 0;
  std::string pass;
  // Texts are as the recorder got them, cut to 47 bytes.
  std::string strategy;
  std::string activity;
  int activity_number = 0;  ///< In the step, from 1.
  std::int64_t activity_bytes = 0;
  /// The activity ends when all ranks of the group have come to it.
  bool collective = false;
  int group = 0;  ///< As in Flight::ranks_of().
  /// Not `since_ns`: a call may have begun in the activity.
  std::int64_t activity_since_ns = 0;
};

/// The file of one rank. It holds values only, so it stays as it was read.
struct Flight {
  // Facts that are fixed when the file is made.

  int world = 0;
  int rank = 0;
  std::string host;
  std::int64_t pid = 0;
  std::int64_t process_start = 0;  ///< process_start_of (process_state.h)
  std::string program;             ///< Version of the program.
  /// The same moment on the two clocks: nanoseconds since 1970, and of the monotonic clock.
  std::int64_t base_wall_ns = 0;
  std::int64_t base_monotonic_ns = 0;

  // Work: the present one is the last. Earlier ones are there as far as they are kept, 15 at most.

  RecordedWork work;
  std::vector<RecordedWork> earlier_work;

  // Waits and the end. A rank that failed in a wait still waits.

  Wait wait = Wait::None;
  int wait_call = 0;               ///< Messages: those of this call; 0: all.
  int wait_group = 0;              ///< Agreement, Proof: a group of ranks_of().
  std::int64_t wait_since_ns = 0;  ///< 0 if the rank does not wait.
  End end = End::Running;
  std::int64_t end_ns = 0;  ///< 0 if there is no end.
  std::string reason;       ///< Text of the error; empty unless the rank failed.

  /// Ops that are done and ops under way; several lanes have ops under way at the same time.
  std::vector<RecordedOp> ops;  ///< The last 1,000 at most, by number.
  /// Ranks of the groups that the rank has named, ascending: those of group g are at g - 1.
  std::vector<std::vector<int>> groups;
  /// A number above 0 shows a process that was killed, or a file that changed all the time.
  int torn = 0;  ///< Ops that were half written and are left out.

  /// The ranks of a group; null for all ranks of the run, which is group 0.
  const std::vector<int>* ranks_of(int group) const {
    return group == 0 ? nullptr : &groups[group - 1];
  }
  /// Nanoseconds since 1970 of a time of this host. The clocks are compared when the file is made.
  std::int64_t wall_ns(std::int64_t monotonic_ns) const {
    return base_wall_ns + (monotonic_ns - base_monotonic_ns);
  }
  /// The last time at which the rank wrote anything but its end.
  std::int64_t last_event_ns() const;
  /// Undoes what the rank did later than that: ops that started later are dropped, those that ended
  /// later are under way, and the work is that of the time. The end stays.
  void rewind_to(std::int64_t monotonic_ns);
};

/// Reads one file. The process that writes it may go on; it is not disturbed.
/// @throws IoError naming the path, if the file cannot be read, is no flight file, is truncated, is
/// of another format version, or has a value that no recorder writes (with its byte offset).
Flight read_flight(const std::string& path);

/// The ranks of a run, and all that is known from outside.
struct RecordedRun {
  std::vector<std::optional<Flight>> flights;  ///< By rank; empty for a rank without a file.
  /// Asked after the files were read, so a process may have ended since its last op.
  std::vector<ProcessState> states;  ///< By rank; Unknown for a rank without a file.
  std::int64_t now_ns = 0;           ///< Since 1970.
};

/// Reads a run folder. Files of another world than that of the newest file were left by an earlier
/// run, and are left out.
/// @throws IoError as read_flight, if there is no file or no folder, or if a file has the name of
/// another rank.
RecordedRun read_run(const std::string& run_folder);

}  // namespace armillary::recorder
