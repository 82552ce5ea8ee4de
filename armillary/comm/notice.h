// notice.h: the messages that travel beside the data, in a way of their own. Internal to the
// engines of processes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "armillary/comm/liveness/heartbeat.h"

namespace armillary::comm {

/// The meaning of a notice.
enum class NoticeKind : std::int32_t {
  Failure,   ///< The group has failed; `text` is the reason, in the name of `rank`.
  PassedOn,  ///< c10d: a failure that `rank` told itself, from a sender that leaves because of it.
  Leaving,   ///< MPI: the sender unwinds and drops messages.
  Left,      ///< c10d: the sender has ended its part. `text` is not zero if it went on.
  Heard,     ///< c10d: the sender knows that the receiver has left.
  Ask,       ///< For a heartbeat.
  Answer,    ///< The heartbeat of the sender, in `text`.
};

/// One notice, 1 KiB: small enough that MPI sends it without asking the receiver first.
struct Notice {
  NoticeKind kind = NoticeKind::Failure;
  std::int32_t rank = -1;
  HeartbeatBytes text = {};  ///< Padded with zeros; a reason never fills it.

  /// A failure. A reason that is too long is cut: its end is a zero.
  static Notice failure(int rank, const std::string& reason) {
    Notice notice{.kind = NoticeKind::Failure, .rank = rank};
    std::copy_n(reason.begin(), std::min(reason.size(), notice.text.size() - 1),
                notice.text.begin());
    return notice;
  }
};
static_assert(sizeof(Notice) == 1024);

}  // namespace armillary::comm
