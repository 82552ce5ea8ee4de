// started_collective.h: a collective under way, as one request. Internal to comm.
//
//   messages of one batch --all done--> finish() on the thread that asks --> the request is done
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/label.h"

namespace armillary::comm {

/// Messages that are done together, and the work that is left then. Dropping it before it is done
/// withdraws its messages.
class StartedCollective : public Pending {
 public:
  StartedCollective() : Pending(PendingKind::Collective) {}

  /// Whether all messages are done, by `is_done(message)`; finishes the collective then. Lets go of
  /// those that are.
  template <class IsDone>
  bool look(const IsDone& is_done) const {
    std::erase_if(messages, [&](const Request& request) { return !request || is_done(*request); });
    if (!messages.empty()) return false;
    if (finish) std::exchange(finish, nullptr)();
    return true;
  }

  // Filled in before the request is handed out. Messages are the last to be made and the first to
  // go: they use the rest.
  std::vector<Label> labels;
  std::unique_ptr<std::byte[]> scratch;
  mutable std::function<void()> finish;   ///< The work after the last message; empty for none.
  mutable std::vector<Request> messages;  ///< Those that were not done at the last look.
};

}  // namespace armillary::comm
