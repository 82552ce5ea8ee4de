// pending.h: one side of a message under way between processes. Internal to mpi.h.
//
//   bytes = first piece + (pieces - 1) * bytes of a piece    the first piece is the odd one
//
// A message of too many pieces of MpiOptions::piece_bytes has larger ones.
//
// A label travels in front of the first piece, in the same MPI message; with a message of more than
// kMostBesideLabel bytes it is a piece of its own, the first: MPI copies once more what lies in two
// places.
//
// Memory of several rows is packed into a buffer before it is sent, and unpacked from one after it
// is received. Memory of one row is given to MPI as it is.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/label.h"
#include "armillary/comm/pack_buffers.h"

namespace armillary::comm {

class MpiGroup;

/// Most pieces of one message: their number has to fit into a tag, beside that of the group.
inline constexpr int kMostPieces = 1 << 10;
/// Bytes of a message up to which its label travels with them.
inline constexpr std::int64_t kMostBesideLabel = 4096;
/// Tags of the pieces of one group.
inline constexpr int kTags = 2 * kMostPieces;

/// Bytes of a piece where kMostPieces of `piece_bytes` are too few. An int has to hold them.
constexpr std::int64_t large_piece_bytes(std::int64_t piece_bytes) {
  return std::min(piece_bytes * kMostPieces, std::int64_t{1} << 30);
}

/// A send or a receive of this rank. The rank's Request owns it; the group knows it while it is
/// under way. Functions require the lock of MpiProcess, except is_complete() and place().
class MpiPending : public Pending {
 public:
  /// @throws InvalidArgument if it has too many bytes for kMostPieces large pieces.
  MpiPending(MpiGroup& group, const Message& message, std::int64_t piece_bytes);
  /// Withdraws a message that is not done.
  ~MpiPending() override;

  // Pieces. The group gives them to MPI in order, and counts those that MPI has ended with.

  int pieces() const { return pieces_; }
  /// Tag of the next piece, without the group: the pieces that follow, and whether they are large.
  int tag() const { return (is_large_ ? kMostPieces : 0) + pieces_ - started_ - 1; }
  /// Bytes of the pieces that follow one with this tag.
  static std::int64_t bytes_after(int tag, std::int64_t piece_bytes) {
    const std::int64_t size = tag >= kMostPieces ? large_piece_bytes(piece_bytes) : piece_bytes;
    return tag % kMostPieces * size;
  }
  /// Bytes of the next piece, which MPI has not been given yet, and their place in memory.
  std::span<std::byte> next_piece();
  /// The label of this side; null for none.
  const Label* label() const { return label_ ? &*label_ : nullptr; }
  /// Whether the first piece is the label alone.
  bool label_is_apart() const { return labels_ > 0; }
  /// Bytes of the label.
  std::int64_t label_bytes() const { return label_ ? std::int64_t{sizeof(Label)} : 0; }
  /// For a receive with a label: room for that of the sender.
  Label& sent_label() { return sent_label_; }
  /// Counts a piece that MPI was given.
  void piece_started() { ++started_, ++under_way_; }
  /// Counts a piece that MPI has ended with. Returns whether the message is complete.
  bool piece_ended();
  int pieces_started() const { return started_; }
  /// Pieces whose memory MPI may touch.
  int pieces_under_way() const { return under_way_; }

  /// A message that was made and then refused is not under way, and dropping it is no failure.
  void set_under_way() { is_under_way_ = true; }
  bool is_under_way() const { return is_under_way_; }

  // Completion. These two functions need no lock.

  bool is_complete() const { return place() > 0; }
  /// Place, from 1, in the order in which messages of this rank were done; 0 until this one is.
  std::uint64_t place() const { return place_.load(std::memory_order_acquire); }
  /// Unpacks a receive and marks the message as done.
  void set_done(std::uint64_t place);

 private:
  MpiGroup& group_;
  std::vector<Strided> parts_;  ///< Empty if the memory is one row.
  std::optional<Label> label_;
  Label sent_label_;
  std::int64_t piece_bytes_;
  bool is_large_ = false;
  int labels_ = 0;  ///< Pieces of the label alone: none or the first.
  int pieces_;      ///< Those included.
  int started_ = 0;
  int under_way_ = 0;
  bool is_under_way_ = false;
  std::byte* memory_ = nullptr;  ///< All bytes in a row: the caller's memory or the buffer.
  PackBuffers::Buffer buffer_;   ///< Packed bytes; none if the memory is one row.
  std::atomic<std::uint64_t> place_{0};
};

/// Index of the request that was done first, or requests.size() if none is done. Requests that are
/// seen at the same time have the places that MPI_Testsome listed them in.
std::size_t first_mpi_done(std::span<const Request> requests);

}  // namespace armillary::comm
