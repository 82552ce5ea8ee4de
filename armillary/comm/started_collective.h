// started_collective.h: a collective under way, as one request. Internal to comm.
//
//   messages of one batch --all done--> finish() on the thread that asks --> the request is done
//                         --all done--> the next phase's messages, if there is one: they are
//                         started
//                                       by Communicator::progress(), on the lane behind the last
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
/// withdraws its messages; a phase that was not started fails the group as these do.
class StartedCollective : public Pending {
 public:
  StartedCollective() : Pending(PendingKind::Collective) {}
  ~StartedCollective() override;

  /// Lets go of the messages that are done, by `is_done(message)`. Returns whether none is left.
  template <class IsDone>
  bool messages_done(const IsDone& is_done) const {
    std::erase_if(messages, [&](const Request& request) { return !request || is_done(*request); });
    return messages.empty();
  }

  /// Whether all messages of all phases are done; finishes the collective then.
  template <class IsDone>
  bool look(const IsDone& is_done) const {
    if (!messages_done(is_done) || has_next()) return false;
    if (finish) std::exchange(finish, nullptr)();
    return true;
  }

  /// Starts messages, and returns them.
  using Phase = std::function<std::vector<Request>()>;
  /// Adds a second phase, on the lane group.lanes(). To be called when the first one has started.
  void set_next(Communicator& group, Phase next);
  bool has_next() const { return next_ != nullptr; }
  Communicator& group() const { return *group_; }  ///< Of one that has a next phase.
  /// For Communicator::progress(), when the messages before are done.
  void start_next() const;

  // Filled in before the request is handed out. Messages are the last to be made and the first to
  // go: they use the rest.
  std::vector<Label> labels;
  std::unique_ptr<std::byte[]> scratch;
  mutable std::function<void()> finish;   ///< The work after the last message; empty for none.
  mutable std::vector<Request> messages;  ///< Those that were not done at the last look.

 private:
  Communicator* group_ = nullptr;
  mutable Phase next_;
};

}  // namespace armillary::comm
