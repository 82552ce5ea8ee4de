// Messages as works of Gloo. A work keeps a tensor, which is a view of the memory it is given, so
// nothing is copied here but short messages and those that do not lie in one row.
#include "armillary/comm/c10d/transfer.h"

#include <cstring>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

constexpr std::int64_t kNumber = sizeof(std::int64_t);
constexpr std::int64_t kLabelled = std::int64_t{1} << 62;  ///< Set in the number of bytes.
constexpr std::int64_t kMostHead = kNumber + sizeof(Label);

// Tags are positive ints. The highest bit tells them from the tags of the caller's own messages.
constexpr int kOurs = 1 << 30;
constexpr int kLong = 1 << 29;
constexpr int kSizes = 1 << 15;
static_assert(kMostC10dLanes * kSizes == kLong);

int head_tag(int lane) {
  return kOurs | lane;
}

/// Sizes that differ by less than a prime near kSizes have different tags, so that sizes which are
/// likely to be mistaken for each other do.
int body_tag(int lane, std::int64_t bytes) {
  return kOurs | kLong | lane * kSizes | static_cast<int>(bytes % 32749);
}

}  // namespace

C10dTransfer::C10dTransfer(PackBuffers& buffers, const Message& message, std::int64_t bytes)
    : buffers_(buffers),
      direction_(message.direction),
      peer_(message.peer),
      lane_(message.lane),
      bytes_(bytes),
      head_(buffers.take(kMostHead + kInline)) {
  if (message.label != nullptr) label_ = *message.label;
  const bool is_long = bytes > kInline;
  if (is_long) body_ = one_row(message.parts);
  if (is_long && !body_) {
    packed_ = buffers.take(bytes);
    body_ = packed_.memory.get();
  }
  const bool copied = !is_long || packed_.bytes > 0;
  if (direction_ == Direction::Send) {
    const std::int64_t number = bytes_ | (label_ ? kLabelled : 0);
    std::memcpy(head_.memory.get(), &number, kNumber);
    if (label_) std::memcpy(head_.memory.get() + kNumber, &*label_, sizeof(Label));
    const Strided packed{is_long ? body_ : inline_bytes(), 1, bytes, bytes};
    if (copied) copy_strided(message.parts, {&packed, 1});
  } else if (copied) {
    parts_.assign(message.parts.begin(), message.parts.end());
  }
}

C10dTransfer::~C10dTransfer() {
  buffers_.give_back(std::move(head_));
  if (packed_.bytes > 0) buffers_.give_back(std::move(packed_));
}

GlooWork C10dTransfer::start(c10d::Backend& backend, std::byte* memory, std::int64_t bytes,
                             int tag) const {
  return direction_ == Direction::Send ? gloo_send(backend, memory, bytes, peer_, tag)
                                       : gloo_receive(backend, memory, bytes, peer_, tag);
}

// Both works start at once. A receive has room for any head, as the sender may think of a short
// message where this side thinks of a long one.
void C10dTransfer::post(c10d::Backend& backend) {
  const bool whole_head = direction_ == Direction::Receive;
  const std::int64_t front = inline_bytes() - head_.memory.get();
  const std::int64_t head = whole_head ? kMostHead + kInline : front + (body_ ? 0 : bytes_);
  works_.push_back(start(backend, head_.memory.get(), head, head_tag(lane_)));
  if (body_) works_.push_back(start(backend, body_, bytes_, body_tag(lane_, bytes_)));
}

C10dTransfer::TransferEnd C10dTransfer::finish(std::chrono::milliseconds timeout) {
  for (const GlooWork& work : works_) {
    // A work that was interrupted is as it was: it may be waited for again, or dropped.
    if (!work->wait(timeout)) return TransferEnd::Interrupted;
    if (direction_ == Direction::Send) continue;
    read_head();
    if (!is_same(label(), sent_label())) return TransferEnd::OtherLabel;
    if (sent_bytes_ != bytes_) return TransferEnd::OtherSize;
  }
  // All bytes are here, in the head or in the buffer.
  if (!parts_.empty()) {
    const Strided packed{body_ ? body_ : inline_bytes(), 1, bytes_, bytes_};
    copy_strided({&packed, 1}, parts_);
  }
  return TransferEnd::Done;
}

std::byte* C10dTransfer::inline_bytes() const {
  return head_.memory.get() + (label_ ? kMostHead : kNumber);
}

void C10dTransfer::read_head() {
  std::memcpy(&sent_bytes_, head_.memory.get(), kNumber);
  sent_label_.reset();
  if ((sent_bytes_ & kLabelled) == 0) return;
  sent_bytes_ &= ~kLabelled;
  std::memcpy(&sent_label_.emplace(), head_.memory.get() + kNumber, sizeof(Label));
}

void C10dTransfer::interrupt() {
  for (const GlooWork& work : works_) work->abort();
}

}  // namespace armillary::comm
