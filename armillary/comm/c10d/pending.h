// pending.h: the handle of a message under way through Gloo. Internal to c10d.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "armillary/comm/c10d/transfer.h"
#include "armillary/comm/communicator.h"

namespace armillary::comm {

class C10dGroup;
class C10dPending;

/// The messages of one direction, peer and lane. Guarded by the group.
struct C10dQueue {
  std::deque<C10dPending*> messages;  ///< Those that are not over yet, in order.
  bool has_waiter = false;
};

/// A send or a receive of this rank. The rank's Request owns it, and its queue in
/// the group while it is under way.
class C10dPending : public Pending {
 public:
  C10dPending(C10dGroup& group, PackBuffers& buffers, const Message& message)
      : Pending(message, total_bytes(message.parts)),
        group_(group),
        transfer_(buffers, message, bytes()) {}
  /// Withdraws a message that is not done.
  ~C10dPending() override;

  C10dTransfer& transfer() { return transfer_; }

  bool is_complete() const { return place() > 0; }
  /// Place, from 1, in the order in which messages of this rank were done; 0 until this one is.
  std::uint64_t place() const { return place_.load(std::memory_order_acquire); }
  /// The owner may free this object when this returns.
  void set_done(std::uint64_t place) { place_.store(place, std::memory_order_release); }

  /// The message is under way from now on. Before, dropping it is no failure.
  void set_queue(C10dQueue& queue) { queue_ = &queue; }
  /// Requires that the message is under way.
  C10dQueue& queue() const { return *queue_; }

 private:
  C10dGroup& group_;
  C10dTransfer transfer_;
  C10dQueue* queue_ = nullptr;
  std::atomic<std::uint64_t> place_{0};
};

/// Index of the request that was done first, or requests.size() if none is done.
std::size_t first_c10d_done(std::span<const Request> requests);

}  // namespace armillary::comm
