// local_pending.h: one message under way between ranks that are threads, and its loan. Internal to
// local.h.
//
//   send     <--other--  receive       a loan: the receive reads the parts of the send
//     '------- other ------->'         until either end goes or gives it back
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

/// Of the group's queues, until it is matched; then its owner's alone, or of a loan's two ends.
class LocalPending : public Pending {
 public:
  LocalPending(LocalGroup& group, int rank, const Message& message,
               std::pmr::memory_resource* memory);
  ~LocalPending() override;

  int rank() const { return rank_; }
  std::span<const Strided> parts() const { return parts_; }
  std::span<const Strided> borrowed() const override {
    return borrows_ ? parts() : std::span<const Strided>();
  }

  // Under the group's lock, as all that follows a match.

  /// Whether `receive` can read this send's memory instead of a copy.
  bool fits(const LocalPending& receive) const;
  void lend_to(LocalPending& receive);
  /// Of a send: whether a receive borrows from it now.
  bool lends() const { return direction() == Direction::Send && other_ != nullptr; }
  /// Of either side: ends the loan, and returns the other, or null if that has gone before.
  LocalPending* end_loan();

  bool done() const { return place() > 0; }
  /// Place, from 1, in the order in which the group's messages ended; 0 before this one has.
  std::uint64_t place() const { return place_.load(std::memory_order_acquire); }
  /// The owner may free this object as soon as it sees it: the last thing anyone else does to it.
  void set_done(std::uint64_t place) { place_.store(place, std::memory_order_release); }

 private:
  LocalGroup& group_;
  int rank_;
  std::pmr::vector<Strided> parts_;  ///< Of a receive that borrows: the sender's.
  bool loan_;
  bool borrows_ = false;           ///< Of a receive; set before it is done.
  LocalPending* other_ = nullptr;  ///< Of a loan.
  std::shared_ptr<const void> owner_;
  std::atomic<std::uint64_t> place_{0};
};

/// Index of the request that was done first, or requests.size() if none is. Not the lowest index:
/// a rank that looks late would see the order that a shuffled group made as if it had not.
std::size_t first_done(std::span<const Request> requests);

/// What a text about sends that are not done adds for those that have arrived. Under the lock.
std::string loans_text(std::span<const Request> requests);

}  // namespace armillary::comm
