// Ranks as threads: one LocalCommunicator per rank, and one LocalGroup for all of them, which does
// the work. run_ranks() starts the threads, turns the exception of a rank into an abort of the
// group, joins the threads, and throws the first exception again.
#include "armillary/comm/local.h"

#include <exception>
#include <memory_resource>
#include <system_error>
#include <thread>
#include <vector>

#include "armillary/comm/group_peer_wait.h"
#include "armillary/comm/local_group.h"
#include "armillary/comm/reason.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// One rank's end of the group: passes every call on, with its rank.
class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(LocalGroup& group, int rank, int world, const LocalOptions& options)
      : Communicator(rank, world, options.timeout_s, options.lanes), group_(group) {}

  bool shares_process() const override { return true; }
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) override {
    return std::make_unique<GroupPeerWait<LocalGroup>>(group_, rank(), std::move(wait));
  }
  void throw_if_failed() override { group_.throw_if_failed(rank()); }
  void abort(const std::string& reason) noexcept override { group_.abort(rank(), reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override {
    group_.start(rank(), batch, requests, &memory_);
  }
  bool do_is_complete(const Pending& request) override {
    return group_.is_complete(rank(), static_cast<const LocalPending&>(request));
  }
  void do_give_back(const Pending& request) override {
    // Handles are const for their holders; the group may change what they point to.
    group_.give_back(const_cast<LocalPending&>(static_cast<const LocalPending&>(request)));
    group_.throw_if_failed(rank());
  }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return group_.wait_any(rank(), requests, timeout_s, [&] { return describe(requests); });
  }

  LocalGroup& group_;
  std::pmr::unsynchronized_pool_resource memory_;  ///< Holds this rank's messages under way.
};

}  // namespace

void run_ranks(int world, const std::function<void(Communicator&)>& body,
               const LocalOptions& options) {
  if (world < 1) fail<InvalidArgument>("run_ranks: world {}; at least 1 is required", world);
  if (!(options.max_delay_s >= 0 && options.max_delay_s <= 1)) {
    fail<InvalidArgument>("run_ranks: max_delay {} s; 0 to 1 s is required", options.max_delay_s);
  }
  LocalGroup group(world, options);
  std::vector<std::exception_ptr> errors(world);
  const auto run_rank = [&](int rank) {
    group.enter(rank);
    try {
      LocalCommunicator communicator(group, rank, world, options);
      body(communicator);
    } catch (...) {
      errors[rank] = std::current_exception();
      group.abort(rank, reason_of(errors[rank]));
    }
    group.leave(rank);
  };
  // If a thread cannot be made, the ranks that have begun are ended by an abort in its name.
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < world; ++rank) threads.emplace_back(run_rank, rank);
  } catch (const std::system_error& e) {
    group.abort(static_cast<int>(threads.size()), fmt::format("no thread: {}", e.what()));
  }
  for (std::thread& thread : threads) thread.join();
  // Errors of other ranks are consequences of the first. A rank that swallowed its error left none.
  if (const std::optional<int> first = group.failed_rank()) {
    if (errors[*first]) std::rethrow_exception(errors[*first]);
    throw group.error();
  }
}

}  // namespace armillary::comm
