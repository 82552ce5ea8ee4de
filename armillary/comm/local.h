// local.h: ranks as threads of one process.
//
// Whichever side of a message comes second, or a receiver that waits, copies straight from the
// sender's memory into the receiver's: no staging buffer, no other copy, no thread besides the
// ranks'. Copies run outside the lock, so any number of pairs copy at once. Where both sides allow
// a loan nothing is copied.
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
  double timeout_s = 60;  ///< Of every wait, until set_timeout().
  int lanes = 32;

  /// For tests: delays every matched message by a time in [0, max_delay_s), drawn per (sender,
  /// receiver, lane) from this seed, so messages of different queues are done in another order than
  /// they were sent in. Never within a queue, where order is promised; so results may not change.
  /// Delayed copies run inside the waits and done() of any rank, never inside start().
  std::optional<std::uint64_t> shuffle_seed = {};
  double max_delay_s = 2e-4;
};

/// Runs `body` on `world` new threads, one a rank, and returns when all have ended.
///
/// (1) If a rank throws, the group is aborted with the text of its exception, the others leave
/// their calls within a second with CommError, all threads are joined, and the exception of the
/// rank that failed first is thrown again, its type kept. (2) If the group failed and that rank
/// swallowed its error, CommError. (3) A world of 1 has nobody to talk to and is legal.
///
/// A rank that leaves while others expect messages from it is noticed by their timeouts.
///
/// Cost: a message takes a few short sections under one lock of the group, and one copy or none.
/// One of 8 bytes takes a few microseconds. A rank that waits keeps its core for 300 us, yielding
/// it to whoever else wants it, before it sleeps.
/// @throws InvalidArgument if world < 1, or an option is out of range.
void run_ranks(int world, const std::function<void(Communicator&)>& body,
               const LocalOptions& options = {});

}  // namespace armillary::comm
