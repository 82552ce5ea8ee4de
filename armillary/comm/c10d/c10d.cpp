// Ranks as processes of a process group: the Communicator, which passes every call on to C10dGroup,
// and the two ways to make a group.
#include "armillary/comm/c10d.h"

#include <exception>
#include <utility>

#include "armillary/comm/c10d/connect.h"
#include "armillary/comm/c10d/group.h"
#include "armillary/comm/reason.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// One rank's end of the group. split() is the default: parts have lanes of their own beyond those
/// of the options, which are tags as well.
class C10dCommunicator : public Communicator {
 public:
  C10dCommunicator(C10dGroup& group, const C10dOptions& options)
      : Communicator(group.rank(), group.world(), options.timeout_s, options.lanes),
        group_(group) {}

  void throw_if_failed() override { group_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { group_.abort(reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override {
    group_.start(batch, requests);
  }
  bool do_done(const Pending& request) override {
    return group_.done(static_cast<const C10dPending&>(request));
  }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return group_.wait_any(requests, timeout_s, [&] { return describe(requests); });
  }

  C10dGroup& group_;
};

/// @throws InvalidArgument if an option is out of range.
void expect_legal(const C10dOptions& options, const char* caller) {
  if (options.lanes < 1 || options.lanes > kMostC10dLanes) {
    fail<InvalidArgument>("{}: {} lanes; 1 to {} are required", caller, options.lanes,
                          kMostC10dLanes);
  }
  if (!(options.timeout_s > 0 && options.timeout_s <= 1e9)) {
    fail<InvalidArgument>("{}: timeout {} s; more than 0 and at most 1e9 s is required", caller,
                          options.timeout_s);
  }
}

void expect_legal(const C10dRendezvous& rendezvous) {
  if (rendezvous.world < 1 || rendezvous.rank < 0 || rendezvous.rank >= rendezvous.world) {
    fail<InvalidArgument>("run_c10d_rank: rank {} of world {}; a rank in [0, world) is required",
                          rendezvous.rank, rendezvous.world);
  }
  if (rendezvous.port < 1 || rendezvous.port > 65535) {
    fail<InvalidArgument>("run_c10d_rank: port {}; 1 to 65535 is required", rendezvous.port);
  }
}

/// Runs the body; its exception fails the group. Then all ranks leave the group together.
void run_in(C10dConnections connections, const std::function<void(Communicator&)>& body,
            const C10dOptions& options) {
  C10dGroup group(std::move(connections));
  std::exception_ptr error;
  try {
    C10dCommunicator communicator(group, options);
    body(communicator);
  } catch (...) {
    error = std::current_exception();
    group.abort(reason_of(error));
  }
  group.leave();
  // Errors of other ranks are consequences of the first. A rank that swallowed its error left none.
  if (const std::optional<int> first = group.failed_rank()) {
    if (error && *first == group.rank()) std::rethrow_exception(error);
    throw group.error();
  }
}

}  // namespace

void run_c10d_rank(const std::function<void(Communicator&)>& body, const C10dRendezvous& rendezvous,
                   const C10dOptions& options) {
  expect_legal(options, "run_c10d_rank");
  expect_legal(rendezvous);
  run_in(connect(rendezvous, options), body, options);
}

void run_on_process_group(const std::string& group_name,
                          const std::function<void(Communicator&)>& body,
                          const C10dOptions& options) {
  expect_legal(options, "run_on_process_group");
  run_in(connect(group_name, options), body, options);
}

}  // namespace armillary::comm
