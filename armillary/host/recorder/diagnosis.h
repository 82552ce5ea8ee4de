// diagnosis.h: who waits for whom in a run, and which rank the others wait for.
//
//   rank 3 waits for a message of 2 --> rank 2 computes for 4 s: the cause
//   rank 0 waits for one of 3       --> rank 3
//
// A rank in Wait::Messages waits for the peers of the messages of its call under way; one that
// waits for all ranks of a group (an agreement, a proof, a collective activity), for those of them
// that have not come so far.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "armillary/host/recorder/reader.h"

namespace armillary::recorder {

enum class RunVerdict : std::uint8_t {
  Ended,     ///< Every rank ended well.
  UnderWay,  ///< The processes are alive, and no rank that others wait for is silent for long.
  Failed,    ///< A rank ended with an error.
  Stuck,     ///< The processes are alive, and ranks wait for one that is silent, or in a cycle.
  Gone,      ///< Processes ended without a word: they were killed, or crashed.
};
/// `ended`, `under way`, `failed`, `stuck`, `gone`.
std::string_view to_string(RunVerdict verdict);

/// The graph of a run and its root.
struct Diagnosis {
  RunVerdict verdict = RunVerdict::UnderWay;
  /// The ranks that each rank waits for, ascending; none for a rank that goes on.
  std::vector<std::vector<int>> waits_for;
  /// The ranks that the others wait for, or that failed; none if nothing is wrong.
  std::vector<int> causes;
  bool is_cycle = false;  ///< Each of `causes` waits for the next, the last for the first.
  /// Silence is counted up to here: the first failure, else now if a process lives on this host,
  /// else the last record of the run. Since 1970.
  std::int64_t reference_ns = 0;
  /// The run at that time: what ranks did later, before they heard of the failure, is undone.
  RecordedRun run;
  std::string cause;  ///< One line, with ranks, hosts, pids, seconds and ops.
};

/// Finds the cause: an error that is no consequence of a peer's, else a cycle of waits, else ranks
/// without an end beside others that failed, else ranks that wait for nobody while others wait for
/// them. A failure before which nobody was silent is told as the first error.
/// `known_end`: the rank whose process is known to have ended first, as a launcher sees it. It is
/// the cause, unless it told an error itself. Cost: O(world^2) if ranks wait for all others, else
/// O(world + messages under way).
Diagnosis diagnose(const RecordedRun& run, std::optional<int> known_end = {});

/// Seconds from the rank's last record to the reference of the diagnosis, at least 0.
double silent_s(const Flight& flight, std::int64_t reference_ns);

/// Work of the rank in words: `step 17, ring forward of call 3, plan step 1, attend (op 4)`.
std::string place_of(const Flight& flight);

/// An op in words: `recv (op 7) of 65536 bytes from rank 2 on lane 1`.
std::string describe(const RecordedOp& op);

/// Messages under way, oldest first: started and not done. Those of the call that the rank waits
/// in, if it waits in one.
std::vector<RecordedOp> messages_of(const Flight& flight);

/// The reason of a wait in words: `messages`, `its device`, ..; empty for Wait::None.
std::string_view to_string(Wait wait);
/// The same with the group: `all 2 ranks of its group to prove the plan`.
std::string wait_text(const Flight& flight);
/// `alive`, `stopped`, `gone`, `on another host`.
std::string_view to_string(ProcessState state);

}  // namespace armillary::recorder
