// local.h: ranks as threads of one process.
//
// A message is copied straight from the sender's memory into the receiver's, by the side that comes
// second or by a receiver that waits: no staging buffer, no second copy, no thread besides those of
// the ranks. Copies run outside the lock, so any number of them run at once. If both sides allow
// zero copy, nothing is copied.
//
//   rank 0   isend --> [queue 0 -> 1, lane 2]           done
//   rank 1                     irecv --> memcpy --> done
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

struct LocalOptions {
  double timeout_s = 60;  ///< Timeout of every wait, until set_timeout().
  int lanes = 32;

  /// For tests: delays every matched message by a time in [0, max_delay_s), drawn per (sender,
  /// receiver, lane) from this seed, so messages of different queues are done in another order than
  /// they were sent in. Order within a queue is promised and kept, so results must not change.
  /// Delayed copies run inside the waits and is_complete() of any rank, never inside start().
  std::optional<std::uint64_t> shuffle_seed = {};
  double max_delay_s = 2e-4;
};

/// Runs `body` on `world` new threads, one per rank, and returns when all have ended.
///
/// (1) If a rank throws, the group is aborted with the text of its exception, the others leave
/// their calls within a second with CommError, all threads are joined, and the exception of the
/// rank that failed first is thrown again, its type kept. (2) If the group failed and that rank
/// swallowed its error, a CommError is thrown. (3) A world of 1 is legal; it sends nothing.
///
/// A rank that leaves while others expect messages from it is noticed by their timeouts.
///
/// Cost: a message takes a few short sections under one lock of the group, and one copy or none:
/// a few microseconds for 8 bytes. A rank that waits polls for 300 us, yielding its core in
/// between, before it sleeps.
/// @throws InvalidArgument if world < 1, or an option is out of range.
void run_ranks(int world, const std::function<void(Communicator&)>& body,
               const LocalOptions& options = {});

}  // namespace armillary::comm
