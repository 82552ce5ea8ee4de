// lanes.h: the NCCL communicators of one group, and the work in their streams. Internal to nccl.h.
//
//   queued     in order, per lane; it waits until NCCL has taken the work before it
//   starting   a group was ended; NCCL connects to peers that are new, which takes their help
//   running    the work is in the stream, and an event behind it
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/nccl/api.h"

namespace armillary::comm {

class NcclRank;

/// One side of a message for NCCL: `bytes` in one row, at a peer of this group.
struct NcclMove {
  Direction direction;
  int peer;
  std::span<std::byte> bytes;
  std::vector<Strided> parts;  ///< Memory that is packed into `bytes`, or unpacked from them.
  bool packed = false;         ///< Whether `bytes` are a buffer, for the time of the work.
};

/// All messages of a batch on one lane, or a collective.
struct NcclWork {
  enum class State : std::uint8_t { Queued, Starting, Running };

  std::vector<NcclMove> moves;
  std::function<void(NcclComm, GpuStream)> collective;
  State state = State::Queued;
  GpuEvent event = nullptr;
};

/// The lanes of this rank in one group.
class NcclLanes {
 public:
  /// Begins nothing yet: see make().
  explicit NcclLanes(NcclRank& rank) : rank_(rank) {}
  NcclLanes(const NcclLanes&) = delete;
  NcclLanes& operator=(const NcclLanes&) = delete;

  /// Makes the communicators with the ranks of `part`, one after the other, and the streams.
  void make(Communicator& part);

  /// The ranks of the host's group that these ranks of this group are.
  std::vector<int> on_host(std::vector<int> ranks) const;
  /// The same for all ranks but this one.
  std::vector<int> others_on_host() const;

  /// Begins the messages of a batch, whose memory is on this rank's device or has no bytes, and
  /// writes their handles.
  void start(std::span<const Message> batch, std::span<Request> requests);
  /// Begins a collective on a lane, and returns the number of its work.
  std::uint64_t start_collective(int lane, std::function<void(NcclComm, GpuStream)> collective);
  /// Whether the lane has done the work with this number. Makes no progress.
  bool is_complete(int lane, std::uint64_t work) const { return lanes_[lane].works_done >= work; }
  /// Starts what may start and takes notice of what is over. @throws CommError of the libraries.
  void progress();
  /// Whether a work is not running yet, so that it takes progress() to start it.
  bool needs_progress() const;
  /// Fails the group, unless an exception is unwinding the rank, and aborts all lanes.
  void withdraw(const Pending& message) noexcept;

  // The end.

  /// Begins to end the communicators; progress() goes on with it.
  void begin_end();
  bool ending() const { return ending_; }
  /// True if begin_end() was called and all communicators are freed.
  bool ended() const { return ending_ && lanes_.empty(); }
  /// Appends the communicators that exist, for an abort.
  void add_comms(std::vector<NcclComm>& comms) const;
  /// Waits until the streams are empty, after the begin of an abort.
  void drain_streams() const noexcept;
  /// Frees the streams, after the end of an abort.
  void drop_streams() noexcept;

 private:
  struct Lane {
    NcclComm comm = nullptr;
    GpuStream stream = nullptr;
    std::byte* nothing = nullptr;  ///< A byte to send, and one to receive, for empty messages.
    std::deque<NcclWork> works;    ///< Not done, in order.
    std::uint64_t works_begun = 0;
    std::uint64_t works_done = 0;
  };

  NcclMove move_of(Lane& lane, const Message& message, std::int64_t bytes);
  void progress(Lane& lane);
  /// Gives a work to NCCL.
  void begin(Lane& lane, NcclWork& work);
  /// Queues what follows NCCL's part of a work: copies out of packed buffers, and its event.
  void follow(Lane& lane, NcclWork& work);
  /// Frees a lane whose communicator has ended; true if it did.
  bool progress_to_end(Lane& lane);

  NcclRank& rank_;
  int own_ = 0;             ///< The rank in this group.
  std::vector<int> ranks_;  ///< Ranks of the host's group, by rank of this one.
  std::vector<Lane> lanes_;
  bool ending_ = false;
};

}  // namespace armillary::comm
