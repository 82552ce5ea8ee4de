// Messages between ranks that are threads: their two sides, and the link between them in zero copy.
#include "armillary/comm/local_pending.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "armillary/comm/local_group.h"
#include "armillary/core/count_text.h"

namespace armillary::comm {

LocalPending::LocalPending(LocalGroup& group, int rank, const Message& message,
                           std::pmr::memory_resource* memory)
    : Pending(message, total_bytes(message.parts)),
      group_(group),
      rank_(rank),
      parts_(message.parts.begin(), message.parts.end(), memory),
      label_(message.label),
      zero_copy_(message.zero_copy && bytes() > 0),
      owner_(message.owner) {}

LocalPending::~LocalPending() {
  // A send that is done has nothing to end: it was copied, or its memory was given back.
  if (!is_complete()) {
    group_.withdraw(this);
  } else if (borrows_) {
    group_.give_back(*this);
  }
}

bool LocalPending::can_share_with(const LocalPending& receive) const {
  const auto bytes = [](const Strided& part) { return part.rows * part.row_bytes; };
  return zero_copy_ && receive.zero_copy_ &&
         std::ranges::equal(parts_, receive.parts_, std::equal_to<>(), bytes, bytes);
}

void LocalPending::share_with(LocalPending& receive) {
  // The list of the receive is as long, so nothing is allocated from the receiver's memory
  // resource: this may be the sender's thread.
  std::copy(parts_.begin(), parts_.end(), receive.parts_.begin());
  receive.owner_ = owner_;
  receive.borrows_ = true;
  receive.other_side_ = this;
  other_side_ = &receive;
}

LocalPending* LocalPending::end_zero_copy() {
  LocalPending* const other = std::exchange(other_side_, nullptr);
  if (other) other->other_side_ = nullptr;
  return other;
}

std::size_t first_done(std::span<const Request> requests) {
  std::size_t first = requests.size();
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]) continue;
    const std::uint64_t place = static_cast<const LocalPending&>(*requests[i]).place();
    if (place == 0 || place >= least) continue;  // Not done, or done later.
    first = i;
    least = place;
  }
  return first;
}

std::string zero_copy_text(std::span<const Request> requests) {
  std::string text;
  for (const Request& request : requests) {
    if (!request || !static_cast<const LocalPending&>(*request).is_shared()) continue;
    text += fmt::format("; rank {} has the {} of lane {} and reads them in place", request->peer(),
                        count_of(request->bytes(), "byte"), request->lane());
  }
  return text;
}

}  // namespace armillary::comm
