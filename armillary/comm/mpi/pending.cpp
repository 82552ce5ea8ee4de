// Messages of processes: memory in one row, or packed into a buffer, and cut into pieces.
#include "armillary/comm/mpi/pending.h"

#include <limits>
#include <utility>

#include "armillary/comm/mpi/group.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {

MpiPending::MpiPending(MpiGroup& group, const Message& message, std::int64_t piece_bytes)
    : Pending(message, total_bytes(message.parts)), group_(group), piece_bytes_(piece_bytes) {
  if (message.label != nullptr) label_ = *message.label;
  if (label_ && bytes() > kMostBesideLabel) labels_ = 1;
  if (bytes() > (kMostPieces - labels_) * piece_bytes) {
    is_large_ = true;
    piece_bytes_ = large_piece_bytes(piece_bytes);
  }
  const std::int64_t pieces = labels_ + (bytes() == 0 ? 1 : (bytes() - 1) / piece_bytes_ + 1);
  if (pieces > kMostPieces) {
    fail<InvalidArgument>("mpi: a message of {}; at most {} of {} are required",
                          count_of(bytes(), "byte"), count_of(kMostPieces, "piece"),
                          count_of(piece_bytes_, "byte"));
  }
  pieces_ = static_cast<int>(pieces);
  if (bytes() == 0) return;
  memory_ = one_row(message.parts);
  if (memory_) return;
  // A send is packed at once; a receive keeps its parts until its bytes are there.
  parts_.assign(message.parts.begin(), message.parts.end());
  buffer_ = group_.buffers().take(bytes());
  memory_ = buffer_.memory.get();
  const Strided packed{memory_, 1, bytes(), bytes()};
  if (direction() == Direction::Send) copy_strided(parts_, {&packed, 1});
}

MpiPending::~MpiPending() {
  if (is_under_way_ && !is_complete()) group_.withdraw(*this);
}

// The first piece with bytes is the odd one: its bytes and the number of the others tell the total.
std::span<std::byte> MpiPending::next_piece() {
  if (started_ < labels_) return {memory_, 0};
  const std::int64_t first = bytes() - (pieces_ - labels_ - 1) * piece_bytes_;
  const int before = started_ - labels_;
  if (before == 0) return {memory_, static_cast<std::size_t>(first)};
  return {memory_ + first + (before - 1) * piece_bytes_, static_cast<std::size_t>(piece_bytes_)};
}

bool MpiPending::piece_ended() {
  --under_way_;
  return under_way_ == 0 && started_ == pieces_;
}

void MpiPending::set_done(std::uint64_t place) {
  if (buffer_.bytes > 0) {
    const Strided packed{memory_, 1, bytes(), bytes()};
    if (direction() == Direction::Receive) copy_strided({&packed, 1}, parts_);
    group_.buffers().give_back(std::move(buffer_));
  }
  // The owner may free this object from now on.
  place_.store(place, std::memory_order_release);
}

std::size_t first_mpi_done(std::span<const Request> requests) {
  std::size_t first = requests.size();
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]) continue;
    const std::uint64_t place = static_cast<const MpiPending&>(*requests[i]).place();
    if (place == 0 || place >= least) continue;  // Not done, or done later.
    first = i;
    least = place;
  }
  return first;
}

}  // namespace armillary::comm
