// group_communicator.h: the rank that this process is, on the group of an engine of processes.
// Internal to those engines.
//
// A Group has rank(), world(), start(), is_complete(), wait_any(), begin_peer_wait(),
// throw_if_failed(), abort(), leave(), failed_rank() and error(), and names its class of requests
// `Pending`.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "armillary/comm/communicator.h"
#include "armillary/comm/peer_wait.h"
#include "armillary/comm/reason.h"
#include "armillary/core/error.h"

namespace armillary::comm {

/// One rank's end of the group, which passes every call on to it. split() is the default: parts
/// have lanes of their own beyond those of this group, which are tags as well.
template <class Group, class Base = Communicator>
class GroupCommunicator : public Base {
 public:
  GroupCommunicator(Group& group, double timeout_s, int lanes)
      : Base(group.rank(), group.world(), timeout_s, lanes), group_(group) {}

  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) override {
    return group_.begin_peer_wait(std::move(wait));
  }
  void throw_if_failed() override { group_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { group_.abort(reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override {
    group_.start(batch, requests);
  }
  bool do_is_complete(const Pending& request) override {
    return group_.is_complete(static_cast<const typename Group::Pending&>(request));
  }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return group_.wait_any(requests, timeout_s, [&] { return this->describe(requests); });
  }

  Group& group_;
};

/// Whether an exception may be the consequence of another rank's failure.
inline bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Runs the body; its exception fails the group. Then all ranks leave the group together. Throws
/// the body's exception if this rank failed first or for a reason of its own, as when all ranks
/// refuse the same input; or else the error of the group if it failed.
template <class Group>
void run_in(Group& group, double timeout_s, int lanes,
            const std::function<void(Communicator&)>& body) {
  std::exception_ptr error;
  try {
    GroupCommunicator<Group> communicator(group, timeout_s, lanes);
    body(communicator);
  } catch (...) {
    error = std::current_exception();
    group.abort(reason_of(error));
  }
  group.leave();
  // Errors of other ranks are consequences of the first. A rank that swallowed its error left none.
  if (const std::optional<int> first = group.failed_rank()) {
    if (error && (*first == group.rank() || !is_comm_error(error))) std::rethrow_exception(error);
    throw group.error();
  }
}

}  // namespace armillary::comm
