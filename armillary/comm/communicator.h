// communicator.h: the interface through which the ranks of one group exchange memory.
//
// It has point-to-point messages that never block, waits that always end, and one abort for all
// ranks. It is not a collective library (collectives.h is built on it) and knows nothing of tensors
// or plans. An implementation is called an engine. This library has four: threads of one process
// (local.h), processes of MPI (mpi.h), processes of a PyTorch process group (c10d.h), and NCCL
// between the GPUs of ranks of another engine (nccl.h).
//
//   rank 0   isend(peer 1, lane 2, parts) ---. n-th with n-th, per (sender, receiver, lane)
//   rank 1   irecv(peer 0, lane 2, parts) <--'
//
// Matching. Messages of one lane from one rank to another match in program order, without tags.
// Lanes are independent, and so are ordered pairs of ranks: if one makes no progress, the others
// still do. With NCCL pairs are not: batches of a lane end strictly in order, which is all that
// `verify` assumes. The number of lanes is fixed when a group is made, because an engine may need a
// communicator or a stream for each.
// Threads. One thread per rank calls a communicator; only abort() may be called from any thread.
// Failure. A group that failed stays failed: every call on every rank throws the first error. An
// abort travels beside the messages, not behind them. A group and all groups that split() made of
// it fail together.
// Zero copy. Ranks that share memory need not copy a message: if both sides allow it, the receive
// borrows the sender's memory and gives it back when it has read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/lane_blocks.h"
#include "armillary/comm/peer_wait.h"
#include "armillary/comm/rank_state.h"
#include "armillary/comm/strided.h"

namespace armillary::comm {

class Collectives;
class StartedCollective;
struct Label;

enum class Direction : std::uint8_t { Send, Receive };

/// One message as one side sees it: the bytes of `parts`, one part after the other, row by row. A
/// send and its receive must have equally many bytes, which may be zero; their shapes may differ.
struct Message {
  Direction direction = Direction::Send;
  int peer = -1;
  int lane = 0;
  std::span<const Strided> parts;
  /// Allows zero copy; engines whose ranks do not share memory ignore it. The sender leaves its
  /// memory unchanged until the request is done, which may be long after the message was received.
  /// The receiver reads the bytes from `Pending::borrowed`, if there are any, and gives them back.
  bool zero_copy = false;
  /// For a send that allows zero copy: keeps its memory alive while a receiver reads it, even if
  /// this rank fails and leaves.
  std::shared_ptr<const void> owner = {};
  /// A text that the other side must have too (label.h), else the group fails with both. It must
  /// stay valid as the memory of the message. Messages of device memory are not compared.
  const Label* label = nullptr;
};

enum class PendingKind : std::uint8_t { Message, Collective };

/// A message under way, as one side sees it, or a collective of several. Each engine derives a
/// class of its own.
class Pending {
 public:
  explicit Pending(PendingKind kind) : kind_(kind) {}
  Pending(const Message& message, std::int64_t bytes);
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  /// Withdraws a message that is not done; see Request.
  virtual ~Pending() = default;

  PendingKind kind() const { return kind_; }
  // The following are those of a message.
  Direction direction() const { return direction_; }
  int peer() const { return peer_; }
  int lane() const { return lane_; }
  std::int64_t bytes() const { return bytes_; }

  /// The sender's parts, if this is a receive that is done and was zero copy: as many parts as the
  /// receive has, each of as many bytes. They may be read until they are given back. Empty if the
  /// bytes were copied into the receive's own memory, and for a send.
  virtual std::span<const Strided> borrowed() const { return {}; }

 private:
  PendingKind kind_ = PendingKind::Message;
  Direction direction_ = Direction::Send;
  int peer_ = -1;
  int lane_ = 0;
  std::int64_t bytes_ = 0;
};

/// Handle of a started message; an empty one counts as done. The memory of the message must stay
/// valid, and belongs to the communicator, until the request is done or the last handle is gone.
/// Dropping the last handle of a message that is not done withdraws the message: its memory is not
/// touched any more and the group fails (while an exception unwinds the rank, the group waits for
/// that exception's abort instead). So declare requests after the memory they use. A request must
/// not outlive its communicator.
using Request = std::shared_ptr<const Pending>;

/// One rank's end of a group.
///
/// Every timeout is in seconds, in (0, 1e9]; if it is left out, it is timeout_s(). It counts from
/// the last progress of the peer, or from the begin of the wait if that is later. A wait that
/// reaches it for one of its peers fails the group with a text that names rank, peer, lane, bytes,
/// the seconds waited and the rank that is to blame.
///
/// Progress of a rank is (1) a message of its own that is done, (2) use of a core while it is not
/// in a wait, (3) while it is in a wait, the progress of the ranks that it waits for. So a rank
/// that computes for long is waited for, also by ranks that wait for it through others; ranks that
/// wait in a cycle, and one that is stopped, gone, asleep, blocked, out of reach or has ended its
/// part, are not. A loop that never ends counts as computing. Ranks that wait for long ask each
/// other beside the messages; a wait in which this process itself was stopped is longer by that
/// time.
///
/// @throws CommError from every method after the group failed: "rank R failed: <first reason>",
/// within a second of the failure, also out of a wait that has begun. After that, other ranks do
/// not touch this rank's memory, except to read what they borrowed.
class Communicator {
 public:
  virtual ~Communicator();

  int rank() const { return rank_; }
  int world() const { return world_; }
  int lanes() const { return lanes_; }
  double timeout_s() const { return timeout_s_; }
  /// The timeout of all later waits on this rank. @throws InvalidArgument outside (0, 1e9].
  void set_timeout(double timeout_s);

  /// Starts one message, which is a batch of its own. The list `parts` is copied, the memory that
  /// it describes is not.
  Request isend(int peer, int lane, std::span<const Strided> parts);
  Request irecv(int peer, int lane, std::span<const Strided> parts);

  /// Starts messages that can only end together (a send and the receive that answers it), as an
  /// NCCL group or c10d coalescing does. Batches of a lane start in program order. Returns one
  /// request per message, in order. Never waits for a peer, but may move memory before it returns.
  ///
  /// @throws InvalidArgument if a peer is outside [0, world) or this rank, a lane is outside [0,
  ///   lanes()), or a part has negative sizes, overlapping rows, null data with bytes, or lies
  ///   where the engine does not take it; nothing is started then.
  /// @throws CommError if a send and its receive differ in bytes, naming both. With an engine that
  ///   tells only the receiver (MPI), the receiver fails the group; with one that tells nobody
  ///   (NCCL), `verify` has to find it in the plan.
  std::vector<Request> start(std::span<const Message> batch);

  /// The same, but writes the requests into `requests`, one for each message, and so needs no list
  /// of its own.
  void start(std::span<const Message> batch, std::span<Request> requests);

  /// Whether the message is over: the bytes of a receive are there, the memory of a send may be
  /// written again. Calling it repeatedly is enough to make progress. A request that is done stays
  /// done, also after a failure. Cost: one atomic load (local), one MPI_Test, one mutex (c10d), one
  /// event query (NCCL).
  bool is_complete(const Request& request);

  /// Returns when the request is done.
  void wait(const Request& request, std::optional<double> timeout_s = {});

  /// Returns the index of a request that is done: the first that was, if the engine can tell. Empty
  /// requests are skipped, so a caller clears each request it has seen and calls again.
  /// @throws InvalidArgument if all are empty: the wait would never end.
  std::size_t wait_any(std::span<const Request> requests, std::optional<double> timeout_s = {});

  /// Waits for the requests one after the other. The timeout starts anew for each.
  void wait_all(std::span<const Request> requests, std::optional<double> timeout_s = {});

  /// Gives back the memory that a receive borrowed, which completes its send. Does nothing if the
  /// receive borrowed nothing, or has given it back. Dropping the last handle of the receive gives
  /// back too. @throws CommError if the group has failed: the sender may have left, and written to
  /// the memory, before it was read.
  void give_back(const Request& request);

  /// The collectives of this engine. For collectives.h, which checks the arguments first.
  Collectives& collectives();

  /// Makes a group of the ranks that call with the same color, ordered by key, ties by rank; null
  /// for ranks with a color < 0. Collective over this group. The new group has as many lanes and
  /// the same timeout, must not outlive this group, and is called from the same threads. By default
  /// the group that was split first carries the messages of all groups made of it, on lanes that it
  /// sets aside for each, so error texts of messages name ranks and lanes of that first group.
  /// Those lanes are at or above lanes(): an engine whose lanes are fixed when it is made overrides
  /// this. They are given back with the group, in which every message has been received by then.
  /// Cost: one all_gather of 24 bytes per rank.
  virtual std::unique_ptr<Communicator> split(int color, int key);

  /// True if the ranks are threads of one process: an answer that is ready comes within some
  /// microseconds, where one between hosts takes some hundred.
  virtual bool shares_process() const { return false; }

  /// The group that was split first: this one, unless split() made it, be it of a part of a part.
  Communicator& root() const { return *root_; }
  /// The rank of root() that a rank of this group is.
  virtual int root_rank(int rank) const { return rank; }
  /// The place of what a layer above keeps for this rank, null at first: the same for root() and
  /// all groups made of it. It dies with root(), and is told of the end of each of the others.
  std::unique_ptr<RankState>& rank_state() const { return root_->rank_state_; }

  /// Begins a wait for peers whose messages this group does not see.
  virtual std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) = 0;

  /// The lanes that groups made of this one have taken. For split_communicator.h.
  LaneBlocks& lane_blocks() { return lane_blocks_; }

  /// @throws CommError as said above if the group has failed; else does nothing. It makes no
  /// progress on messages: it is for ranks that are busy with other work. Cost: one atomic load
  /// (local).
  virtual void throw_if_failed() = 0;

  /// Fails the group. May be called from any thread; does not wait, does not throw. Only the first
  /// abort of a group counts: every rank then throws its reason and rank.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  /// `root`: that of a group made by split(), which must outlive it; null for any other.
  /// @throws InvalidArgument if lanes < 1, or as set_timeout.
  Communicator(int rank, int world, double timeout_s, int lanes, Communicator* root = nullptr);

  /// "rank 1 receives 8 bytes from rank 0 on lane 2, ..." for error texts; skips empty requests.
  std::string describe(std::span<const Request> requests) const;

 private:
  friend class SplitCommunicator;
  friend class NcclCommunicator;  ///< Passes messages of host memory on, as a split group does.

  // The part of each engine. Arguments are checked before, and `requests` is as long as `batch`.
  virtual void do_start(std::span<const Message> batch, std::span<Request> requests) = 0;
  virtual bool do_is_complete(const Pending& request) = 0;
  virtual std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) = 0;
  /// Only called for receives that borrow.
  virtual void do_give_back(const Pending& /*request*/) {}
  /// Whether messages may use memory of this device.
  virtual bool takes(int device) const { return device == kHost; }
  /// The memory that it takes, for error texts.
  virtual std::string taken_memory() const { return "that of the host"; }
  virtual std::unique_ptr<Collectives> make_collectives();

  Request start_one(const Message& message);
  /// wait_any() for lists in which a collective is.
  std::size_t wait_any_collective(std::span<const Request> requests, double timeout_s);
  /// Looks at a collective; makes progress.
  bool collective_is_complete(const Pending& request);
  /// @throws InvalidArgument as start() does, for one message.
  void check(const Message& message) const;

  int rank_;
  int world_;
  int lanes_;
  double timeout_s_;
  Communicator* const root_;
  LaneBlocks lane_blocks_;
  std::unique_ptr<Collectives> collectives_;  ///< Made when it is first asked for.
  std::unique_ptr<RankState> rank_state_;     ///< Null in groups made by split().
};

}  // namespace armillary::comm
