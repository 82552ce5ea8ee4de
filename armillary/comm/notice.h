// notice.h: the messages that travel beside the data, in a way of their own. Internal to the
// engines of processes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "armillary/comm/pulse.h"

namespace armillary::comm {

/// One notice, 1 KiB: small enough that MPI sends it without asking the receiver first.
struct Notice {
  enum class Kind : std::int32_t {
    Failure,  ///< The group has failed; `text` is the reason, in the name of `rank`.
    Leaving,  ///< MPI: the sender unwinds and drops messages.
    Left,     ///< c10d: the sender has ended its part. `text` is not zero if it went on.
    Heard,    ///< c10d: the sender knows that the receiver has left.
    Ask,      ///< For a pulse.
    Answer,   ///< The pulse of the sender, in `text`.
  };
  Kind kind = Kind::Failure;
  std::int32_t rank = -1;
  PulseBytes text = {};  ///< Padded with zeros; a reason never fills it.

  /// A failure. A reason that is too long is cut: its end is a zero.
  static Notice failure(int rank, const std::string& reason) {
    Notice notice{.kind = Kind::Failure, .rank = rank};
    std::copy_n(reason.begin(), std::min(reason.size(), notice.text.size() - 1),
                notice.text.begin());
    return notice;
  }
};
static_assert(sizeof(Notice) == 1024);

}  // namespace armillary::comm
