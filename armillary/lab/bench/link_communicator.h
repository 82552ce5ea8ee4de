// link_communicator.h: ranks of one process as if each had a network card of its own: a message
// takes its time on the links of both ranks, and no core for that time.
//
// On an emulated host the kernel moves the bytes with the cores that compute. Here it is seen what
// a schedule hides where a device moves them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "armillary/comm/communicator.h"

namespace armillary::bench {

/// The links of all ranks, which send and receive at the same time. Any number of threads may call.
class Links {
 public:
  using Clock = std::chrono::steady_clock;

  /// @throws InvalidArgument unless the rate is above 0.
  Links(int world, double bytes_per_s);

  /// A message: its sender, its receiver, its lane and its number among those of these three.
  using Key = std::tuple<int, int, int, std::int64_t>;

  /// Takes up both links for a message from now on, or from when they are free; when it is over.
  Clock::time_point send(const Key& message, std::int64_t bytes);

  /// When a message is over. Once for each. Requires that it was sent.
  Clock::time_point take_end(const Key& message);

 private:
  const double bytes_per_s_;
  std::mutex mutex_;                                            ///< Guards all below.
  std::vector<Clock::time_point> sender_free_, receiver_free_;  ///< By rank.
  std::map<Key, Clock::time_point> ends_;
};

/// Passes everything on to `inner`, whose ranks are threads; a message is over no sooner than on
/// its links. `inner` and `links` must outlive it. Threads: that of the rank.
class LinkCommunicator : public comm::Communicator {
 public:
  LinkCommunicator(comm::Communicator& inner, Links& links)
      : Communicator(inner.rank(), inner.world(), inner.timeout_s(), inner.lanes()),
        inner_(inner),
        links_(links) {}

  /// Groups made of it are those of `inner`, without links.
  std::unique_ptr<comm::Communicator> split(int color, int key) override;
  std::unique_ptr<comm::PeerWait> begin_peer_wait(comm::PeerWaitOptions wait) override;
  bool shares_process() const override { return inner_.shares_process(); }
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  class LinkMessage;

  /// The key of a message that starts.
  Links::Key key_of(const comm::Message& message);
  /// When a message that `inner` has moved is over.
  static Links::Clock::time_point end_of(const LinkMessage& message, Links& links);

  void do_start(std::span<const comm::Message> batch, std::span<comm::Request> requests) override;
  bool do_is_complete(const comm::Pending& request) override;
  std::size_t do_wait_any(std::span<const comm::Request> requests, double timeout_s) override;
  void do_give_back(const comm::Pending& request) override;

  comm::Communicator& inner_;
  Links& links_;
  /// By sender, receiver and lane.
  std::map<std::tuple<int, int, int>, std::int64_t> started_;
};

}  // namespace armillary::bench
