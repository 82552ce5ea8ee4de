// local_pending.h: one side of a message under way between ranks that are threads. Internal to
// local.h.
//
// A message is copied, or it is zero copy: then the receive borrows the memory of the send, and the
// two sides point to each other until the receive gives the memory back or one of them is dropped.
//
//   send     <-- other_side --  receive       the receive reads the parts of the send;
//     '------- other_side ------->'           the send is done when they are given back
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

class LocalGroup;

/// A send or a receive of one rank. The rank's Request owns it. Until it is matched, it stands in a
/// queue of the group; afterwards nobody but its owner knows it, except the other side of a message
/// that is zero copy.
class LocalPending : public Pending {
 public:
  /// `memory` belongs to the rank and holds the list of parts.
  LocalPending(LocalGroup& group, int rank, const Message& message,
               std::pmr::memory_resource* memory);
  /// Withdraws a message that is not done; gives back memory that is still borrowed.
  ~LocalPending() override;

  int rank() const { return rank_; }  ///< The rank that started it.
  /// The memory of this side; for a receive that borrows, that of the sender.
  std::span<const Strided> parts() const { return parts_; }
  std::span<const Strided> borrowed() const override {
    return borrows_ ? parts() : std::span<const Strided>();
  }

  const Label* label() const { return label_; }

  // Zero copy. These functions require the lock of the group.

  /// For a send: whether `receive` may borrow its memory. Both sides must allow it, and have as
  /// many parts, each of as many bytes. A message without bytes is never zero copy.
  bool can_share_with(const LocalPending& receive) const;
  /// For a send: makes it zero copy. `receive` borrows its memory and shares its owner.
  void share_with(LocalPending& receive);
  /// Whether this is a send from which a receive borrows now.
  bool is_shared() const { return direction() == Direction::Send && other_side_ != nullptr; }
  /// For either side: parts the two, and returns the other one; null if they were parted before.
  LocalPending* end_zero_copy();

  // Completion, which the owner reads without the lock.

  bool is_complete() const { return place() > 0; }
  /// Place, from 1, in the order in which the messages of the group were done; 0 until this one is.
  std::uint64_t place() const { return place_.load(std::memory_order_acquire); }
  /// Marks it as done. The owner may free this object as soon as it sees that, so other ranks do
  /// not touch the object afterwards, except to end zero copy under the lock.
  void set_done(std::uint64_t place) { place_.store(place, std::memory_order_release); }

 private:
  LocalGroup& group_;
  int rank_;
  std::pmr::vector<Strided> parts_;
  const Label* label_;
  bool zero_copy_;                      ///< Whether this side allows it.
  bool borrows_ = false;                ///< Set for a receive before it is done; stays set.
  LocalPending* other_side_ = nullptr;  ///< Null unless the message is zero copy at this time.
  std::shared_ptr<const void> owner_;   ///< Keeps shared memory alive.
  std::atomic<std::uint64_t> place_{0};
};

/// Index of the request that was done first, or requests.size() if none is done. It goes by place,
/// not by index, so a rank that looks late still sees the order in which messages were done: tests
/// shuffle that order.
std::size_t first_done(std::span<const Request> requests);

/// Text for the error of a missed deadline: names the sends that have arrived and are not done
/// because their receivers still read them; empty if there are none. Requires the lock of the
/// group.
std::string zero_copy_text(std::span<const Request> requests);

}  // namespace armillary::comm
