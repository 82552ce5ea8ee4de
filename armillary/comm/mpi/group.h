// group.h: the state of one rank of a group of processes: messages under way, and their progress.
// Internal to mpi.h.
//
//   sends      MPI_Isend at once, tag = (number of the group made by split(), MpiPending::tag())
//   arrivals   MPI_Improbe on the lanes that this rank receives on: sender, tag, bytes
//   receives   in order, per (sender, lane): an arrival meets the first receive, MPI_Imrecv
//
// The bytes and the tag of a first piece tell the bytes of its message, so a receive of another
// size is noticed before its memory is touched.
//
// A group that failed, or that all ranks leave, takes what still arrives into buffers that it
// throws away. So all sends end, and no memory of a rank is touched after it has thrown.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/liveness/peer_process.h"
#include "armillary/comm/mpi.h"
#include "armillary/comm/mpi/abort_channel.h"
#include "armillary/comm/mpi/pending.h"
#include "armillary/comm/mpi/process.h"
#include "armillary/comm/peer_wait.h"

namespace armillary::comm {

/// One rank's end of the group. Functions are called on the rank's thread, except abort(). State is
/// guarded by the lock of MpiProcess, but for the abort channel, the heartbeat and the buffers,
/// which any thread may use.
class MpiGroup {
 public:
  using Pending = MpiPending;

  /// Collective over `members`, which is freed. @throws InvalidArgument if options differ.
  MpiGroup(MpiProcess& process, MPI_Comm members, const MpiOptions& options);
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;
  /// Requires leave().
  ~MpiGroup();

  int rank() const { return rank_; }
  int world() const { return world_; }
  /// Memory for messages that are packed.
  PackBuffers& buffers() { return buffers_; }

  // The calls of Communicator.

  /// Starts all receives of the batch, then all sends. Errors are those of Communicator::start.
  void start(std::span<const Message> batch, std::span<Request> requests);
  /// Makes progress once if the message is not done.
  bool is_complete(const MpiPending& request);
  /// `describe` names the requests in the text of a missed deadline.
  std::size_t wait_any(std::span<const Request> requests, double timeout_s,
                       const std::function<std::string()>& describe);
  /// A wait for peers without a message of this group, such as for NCCL's (peer_wait.h).
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions options);
  /// Looks at the peers of such a wait.
  void watch_peers(int rank, std::optional<LongWait>& wait, const PeerWaitOptions& options,
                   double begin_s);
  /// Takes back a message that is not done. Fails the group unless an exception is unwinding.
  void withdraw(MpiPending& request);
  /// @throws CommError if the group has failed, after messages under way have ended.
  void throw_if_failed();
  /// Fails the group in the name of this rank, from any thread. The helper thread tells the peers.
  void abort(const std::string& reason) noexcept;

  /// Waits until all ranks have called it and no message is under way any more, then frees the
  /// communicators. In a group that failed it waits for a second at most, then gives up MPI.
  void leave();
  /// The rank that failed first, if the group has failed.
  std::optional<int> failed_rank() const;
  CommError error() const { return abort_channel_->error(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  /// A piece that has arrived and was not taken yet.
  struct ArrivedPiece {
    MPI_Message message;
    int bytes;
    int tag;  ///< MpiPending::tag()
  };

  /// Messages of one lane from one sender. A withdrawn receive leaves a null pointer in its place.
  struct MpiQueue {
    std::deque<MpiPending*> receives;
    std::deque<ArrivedPiece> arrivals;
    bool refused = false;  ///< The first receive does not fit: the group is about to fail.
  };

  /// Sender and lane, which is at or above the lanes of the options in groups made by split().
  using Source = std::pair<int, int>;

  /// The owner of an MPI request: a message of this rank, or a buffer that is thrown away.
  struct Owner {
    MpiPending* message = nullptr;
    std::unique_ptr<std::byte[]> thrown_away;
    /// For a buffer: tells why its message does not fit its receive. Empty if nobody wants it.
    std::function<void(const std::byte* memory)> refuse;
  };

  /// Pieces and notices that one rank has sent to another; two numbers that travel.
  struct SentCounts {
    std::int64_t pieces = 0;
    std::int64_t notices = 0;
  };

  // Functions that call MPI, with the lock held.

  /// Duplicates `members` for each lane and for notices.
  void make_lanes(MPI_Comm members);
  /// Tells all ranks which process this one is, and watches those of this machine.
  void meet_processes(MPI_Comm members);
  void expect_equal_options(MPI_Comm members) const;
  /// Gives all pieces of a message to MPI.
  void send(MpiPending& message);
  /// Makes progress on everything. An error of MPI fails the group.
  void progress() noexcept;
  /// Takes the arrivals of a lane from MPI and matches them.
  void take_arrivals(int lane);
  /// Takes arrivals for receives that wait, and throws away those that nobody will ask for.
  void match(const Source& source, MpiQueue& queue);
  /// Receives into the memory of the first receive of the queue; fails the group if sizes differ.
  void receive(const Source& source, MpiQueue& queue);
  /// Receives a label that is a piece of its own; fails the group if it is another.
  void receive_label(const Source& source, MpiQueue& queue, ArrivedPiece& arrival);
  void throw_away(const ArrivedPiece& arrival,
                  std::function<void(const std::byte* memory)> refuse = nullptr);
  /// Takes a message that does not fit the receive into a buffer, and fails the group with what its
  /// label says.
  void refuse(const ArrivedPiece& arrival, const MpiPending& receive, std::int64_t sent_bytes);
  /// Asks MPI which pieces have ended, and marks messages as done.
  void test_requests();
  void add_request(MPI_Request request, Owner owner);

  /// Whether nothing that arrives is wanted any more.
  bool drains() const { return abort_channel_->raised() || everybody_left_; }
  /// Lets messages under way end, for half a second at most, then gives up MPI.
  void settle(Lock& lock, const std::function<bool()>& settled);
  void throw_if_failed(Lock& lock);
  /// Asks the ranks that a wait depends on how far they are. Returns whether one is silent.
  bool is_expired(Watch& watch);
  /// The end of the text of a missed deadline.
  std::string blame(const Watch& watch) const;
  /// Fails the group if a process of this machine has ended before it left.
  void look_for_ends();
  /// The part of leave() that waits: for all ranks to leave, and for what still travels.
  void drain(Lock& lock);
  bool await_all(Lock& lock, const std::function<bool()>& all_here);
  void watch_leavers(std::optional<LongWait>& wait, Clock::time_point begin);
  /// Whether all pieces and notices have come that peers say they sent.
  bool all_received(std::span<const SentCounts> sent_to_me) const;
  /// Whether no message of this rank is under way.
  bool is_idle() const;
  /// The helper thread: makes progress now and then, and at once after abort().
  void help();

  MpiProcess& process_;
  const MpiOptions options_;
  int rank_ = 0;
  int world_ = 1;
  int most_groups_ = 1;  ///< Groups that tags can tell apart, this one included.
  MPI_Comm control_ = MPI_COMM_NULL;
  std::vector<MPI_Comm> lanes_;
  std::vector<PeerProcess> processes_;  ///< By rank.
  EndsOfProcesses ends_;
  StopsOfProcesses stops_;
  bool peer_is_lost_ = false;  ///< A process has ended, or does not answer.
  OwnHeartbeat heartbeat_;
  std::optional<MpiAbortChannel> abort_channel_;
  PackBuffers buffers_;

  std::map<Source, MpiQueue> queues_;
  std::vector<int> receives_waiting_;  ///< Per lane: receives that wait for pieces.
  std::vector<MPI_Request> requests_;  ///< Pieces under way, and their owners in the same order.
  std::vector<Owner> owners_;
  std::vector<int> completed_;  ///< Indices that MPI_Testsome returned.
  std::uint64_t messages_done_ = 0;
  std::vector<std::int64_t> pieces_sent_;      ///< Per peer.
  std::vector<std::int64_t> pieces_received_;  ///< Likewise; thrown away ones included.
  bool everybody_left_ = false;                ///< All ranks have called leave().

  std::condition_variable helper_wake_;
  bool helper_rests_ = false;  ///< It looks less often, until a message starts.
  bool helper_stop_ = false;
  std::thread helper_;
};

}  // namespace armillary::comm
