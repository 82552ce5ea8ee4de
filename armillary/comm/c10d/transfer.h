// transfer.h: one side of a message under way through Gloo. Internal to c10d.h.
//
//   up to kInline bytes    one send: [bytes: int64][label][the bytes]   tag of the lane
//   more                   one send: [bytes: int64][label]              tag of the lane
//                          one send: the bytes                          tag of (lane, bytes)
//
// There is a label if the highest bit but one of `bytes` is set.
//
// Gloo ends the process if more bytes come than a receive has room for. So long messages of
// different sizes have different tags, and never meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "armillary/comm/c10d/gloo.h"
#include "armillary/comm/communicator.h"
#include "armillary/comm/label.h"
#include "armillary/comm/pack_buffers.h"

namespace armillary::comm {

/// Lanes that have tags, those of groups made by split() included.
inline constexpr int kMostC10dLanes = 1 << 14;

/// The works and the memory of one message. Used by one thread at a time, except interrupt().
class C10dTransfer {
 public:
  /// Bytes of a message that travel with their number, by a copy.
  static constexpr std::int64_t kInline = 4096;

  enum class TransferEnd : std::uint8_t {
    Done,         ///< The bytes are where they belong, or the memory of a send may be written.
    Interrupted,  ///< interrupt() was called before.
    OtherSize,    ///< The sender has sent_bytes() instead of bytes(). No memory was touched.
    OtherLabel,   ///< The sender has sent_label() instead of label().
  };

  /// Packs a send. `buffers` must outlive the transfer.
  C10dTransfer(PackBuffers& buffers, const Message& message, std::int64_t bytes);
  C10dTransfer(const C10dTransfer&) = delete;
  C10dTransfer& operator=(const C10dTransfer&) = delete;
  /// Requires that no work is left: release() or take_works() was called.
  ~C10dTransfer();

  int peer() const { return peer_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t sent_bytes() const { return sent_bytes_; }
  const Label* label() const { return label_ ? &*label_ : nullptr; }
  const Label* sent_label() const { return sent_label_ ? &*sent_label_ : nullptr; }

  /// Gives the message to Gloo. @throws std::exception of Gloo if the connection is closed.
  void post(c10d::Backend& backend);
  /// Waits until the message is over, and unpacks a receive. If the time passes, Gloo closes all
  /// connections of the group. @throws std::exception of Gloo then, and if the connection broke.
  TransferEnd finish(std::chrono::milliseconds timeout);
  /// Ends a finish() that waits, or the next one. May be called from any thread while there are
  /// works, so not during post() and release().
  void interrupt();
  /// Takes the memory from Gloo, which does not touch it any more when this returns.
  void release() { works_.clear(); }
  /// The works of a transfer that is done, for a caller who drops them later.
  std::vector<GlooWork> take_works() { return std::exchange(works_, {}); }

 private:
  /// The bytes of a short message, behind number and label.
  std::byte* inline_bytes() const;
  /// Reads number and label of a receive whose head is here.
  void read_head();
  GlooWork start(c10d::Backend& backend, std::byte* memory, std::int64_t bytes, int tag) const;

  PackBuffers& buffers_;
  const Direction direction_;
  const int peer_;
  const int lane_;
  const std::int64_t bytes_;
  std::int64_t sent_bytes_ = 0;
  std::optional<Label> label_;
  std::optional<Label> sent_label_;
  std::vector<Strided> parts_;  ///< Parts of a receive that is unpacked; else empty.
  PackBuffers::Buffer head_;    ///< The number of bytes, and the bytes if they are few.
  PackBuffers::Buffer packed_;  ///< Memory of a long message that does not lie in one row.
  std::byte* body_ = nullptr;   ///< The bytes of a long message, in one row.
  std::vector<GlooWork> works_;
};

}  // namespace armillary::comm
