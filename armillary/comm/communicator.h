// communicator.h: how the ranks of one group exchange memory.
//
// Point-to-point messages that never block, waits that always end, and one abort for all. It is not
// a collective library (collectives.h is built on it) and knows nothing of tensors or plans.
//
//   rank 0   isend(peer 1, lane 2, parts) ---. n-th with n-th, per (sender, receiver, lane)
//   rank 1   irecv(peer 0, lane 2, parts) <--'
//
// Matching. Messages of one lane between an ordered pair of ranks match in program order, without
// tags. Lanes and pairs are independent: one that stands still holds up no other. How many lanes a
// group has is said when it is made: an engine may need a communicator or a stream for each.
// Threads. One thread per rank calls a communicator; only abort() may be called from any thread.
// Failure. A group that failed stays failed: every call on every rank throws the first error. An
// abort travels beside the messages, not behind them. Groups that split() made fail with the one
// that they were made of, and it with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "armillary/comm/strided.h"

namespace armillary::comm {

class Collectives;

enum class Direction : std::uint8_t { Send, Receive };

/// One message as one side sees it: the bytes of `parts`, one part after the other, row by row. The
/// bytes of a send and its receive must be equal, zero included; their shapes may differ.
struct Message {
  Direction direction = Direction::Send;
  int peer = -1;
  int lane = 0;
  std::span<const Strided> parts;
  /// Allows a loan: ranks that share memory need not copy then, others ignore it. Of a send: the
  /// memory stays as it is until the request is done, which may be long after it was received. Of a
  /// receive: the caller reads the bytes where `Pending::borrowed` says, and gives them back.
  bool loan = false;
  /// Of a send that allows a loan: keeps its memory alive, also if this rank fails and leaves.
  std::shared_ptr<const void> owner = {};
};

/// A message under way. Each implementation derives its own.
class Pending {
 public:
  Pending(const Message& message, std::int64_t bytes);
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  /// See Request for what it does to a message that is not done.
  virtual ~Pending() = default;

  Direction direction() const { return direction_; }
  int peer() const { return peer_; }
  int lane() const { return lane_; }
  std::int64_t bytes() const { return bytes_; }

  /// Of a receive that is done: the sender's parts, as many and each of as many bytes as those of
  /// the receive, if they were lent; none if the bytes were copied. May be read until given back.
  virtual std::span<const Strided> borrowed() const { return {}; }

 private:
  Direction direction_;
  int peer_;
  int lane_;
  std::int64_t bytes_;
};

/// Handle of a started message; an empty one counts as done. The memory of the message must stay
/// valid, and is the communicator's, until the request is done or the last handle is gone. Dropping
/// the last handle of a message that is not done withdraws it: its memory is not touched any more
/// and the group fails (while an exception unwinds the rank, the group waits for that exception's
/// abort instead). So declare requests after the memory they use. A request must not outlive its
/// communicator.
using Request = std::shared_ptr<const Pending>;

/// One rank's end of a group.
///
/// Every timeout is in seconds, in (0, 1e9]; left out, it is timeout_s(). A wait that reaches it
/// fails the group with a text that names rank, peer, lane, bytes and the seconds waited.
///
/// @throws of all methods after the group failed: CommError "rank R failed: <first reason>", within
/// a second of the failure, also out of a wait that has begun. Then no rank touches this rank's
/// memory, but to read what it lent.
class Communicator {
 public:
  virtual ~Communicator();

  int rank() const { return rank_; }
  int world() const { return world_; }
  int lanes() const { return lanes_; }
  double timeout_s() const { return timeout_s_; }
  void set_timeout(double timeout_s);

  /// Starts one message, which is a batch of its own. `parts` is copied, the memory is not.
  Request isend(int peer, int lane, std::span<const Strided> parts);
  Request irecv(int peer, int lane, std::span<const Strided> parts);

  /// Starts messages that can only end together (a send and the receive that answers it): an NCCL
  /// group, c10d coalescing. Batches of a lane start in program order. One request per message, in
  /// order. Never waits for a peer, but may move memory before it returns.
  ///
  /// @throws InvalidArgument if a peer is outside [0, world) or this rank, a lane is outside [0,
  ///   lanes()), or a part has negative sizes, overlapping rows, null data with bytes, or lies
  ///   where the engine does not take it; nothing is started then.
  /// @throws CommError if a send and its receive differ in bytes, naming both. Where only the
  ///   receiver can know (MPI), it fails the group; where nobody can (NCCL), `verify` has to.
  std::vector<Request> start(std::span<const Message> batch);

  /// The same into `requests`, one for each message, which allocates nothing for them.
  void start(std::span<const Message> batch, std::span<Request> requests);

  /// Whether the message is over: a receive's memory is filled, a send's memory may be written
  /// again. Moves things along, so polling it is enough to make progress. A done request stays
  /// done, also after a failure. Cost: one atomic load (local), one MPI_Test, one event query
  /// (nccl).
  bool done(const Request& request);

  /// Returns when the request is done.
  void wait(const Request& request, std::optional<double> timeout_s = {});

  /// Returns the index of a request that is done, the first to be if the implementation can tell.
  /// Empty requests are skipped, so a caller clears what it has seen and calls again.
  /// @throws InvalidArgument if all are empty: the wait would never end.
  std::size_t wait_any(std::span<const Request> requests, std::optional<double> timeout_s = {});

  /// Returns when all are done. The timeout is for each: it restarts when one is done.
  void wait_all(std::span<const Request> requests, std::optional<double> timeout_s = {});

  /// Ends the reading of what a receive borrowed, and so its send; nothing if it borrowed nothing.
  /// Without it the last handle does. @throws CommError if the group has failed: the sender may
  /// have written there before.
  void give_back(const Request& request);

  /// How the engine does collectives; for collectives.h, which checks what it is asked for.
  Collectives& collectives();

  /// A group of the ranks that call with the same color, in the order of key, ties in that of rank;
  /// nothing for ranks with a color < 0. Collective over this group. The new group has as many
  /// lanes, and this timeout. It must not outlive this group. Threads: this group's. The default is
  /// an end of the group that was split first, with ranks and lanes of its own, so errors of
  /// messages name ranks and lanes of that one. Cost: one all_gather of 12 bytes a rank.
  virtual std::unique_ptr<Communicator> split(int color, int key);

  /// An object that who calls this end of the group keeps with it, one of each type: made when it
  /// is first asked for, gone with the communicator.
  template <class T>
  T& attachment() {
    std::shared_ptr<void>& found = attachments_[typeid(T)];
    if (!found) found = std::make_shared<T>();
    return *static_cast<T*>(found.get());
  }

  /// @throws CommError as said above if the group has failed; else nothing. Moves nothing along:
  /// for who has other work than messages. Cost: one atomic load (local).
  virtual void throw_if_failed() = 0;

  /// Fails the group: from any thread, does not wait, does not throw. Only the first abort of a
  /// group counts; its reason and rank are what every rank then throws.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  /// @throws InvalidArgument if lanes < 1, or as set_timeout.
  Communicator(int rank, int world, double timeout_s, int lanes);

  /// "rank 1 receives 8 bytes from rank 0 on lane 2, ..." for error texts; skips empty requests.
  std::string describe(std::span<const Request> requests) const;

 private:
  friend class SplitCommunicator;

  // What an implementation does; arguments are checked. `requests` has the size of `batch`.
  virtual void do_start(std::span<const Message> batch, std::span<Request> requests) = 0;
  virtual bool do_done(const Pending& request) = 0;
  virtual std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) = 0;
  virtual void do_give_back(const Pending& /*request*/) {}          ///< Only of what borrows.
  virtual bool takes(int device) const { return device == kHost; }  ///< Memory there.
  virtual std::unique_ptr<Collectives> make_collectives();

  Request start_one(const Message& message);
  void check(const Message& message) const;

  int rank_;
  int world_;
  int lanes_;
  double timeout_s_;
  std::unique_ptr<Collectives> collectives_;  ///< Made when it is first asked for.
  std::unordered_map<std::type_index, std::shared_ptr<void>> attachments_;
};

}  // namespace armillary::comm
