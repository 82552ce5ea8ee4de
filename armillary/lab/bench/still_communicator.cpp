#include "armillary/lab/bench/still_communicator.h"

#include <cstring>
#include <utility>

namespace armillary::bench {
namespace {

/// A message that was over when it started.
class StillMessage : public comm::Pending {
 public:
  explicit StillMessage(const comm::Message& message)
      : Pending(message, comm::total_bytes(message.parts)) {}
};

bool is_still(const comm::Pending& request) {
  return dynamic_cast<const StillMessage*>(&request) != nullptr;
}

/// Zeros: what is there may be NaN, on which kernels are slower.
void clear(const comm::Message& message) {
  for (const comm::Strided& part : message.parts) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      std::memset(part.data + row * part.stride_bytes, 0, static_cast<std::size_t>(part.row_bytes));
    }
  }
}

/// A handle that does not own the request.
comm::Request share(const comm::Pending& request) {
  return {comm::Request(), &request};
}

}  // namespace

std::unique_ptr<comm::Communicator> StillCommunicator::split(int color, int key) {
  return inner_.split(color, key);
}

std::unique_ptr<comm::PeerWait> StillCommunicator::begin_peer_wait(comm::PeerWaitOptions wait) {
  return inner_.begin_peer_wait(std::move(wait));
}

void StillCommunicator::do_start(std::span<const comm::Message> batch,
                                 std::span<comm::Request> requests) {
  if (!still_) return inner_.start(batch, requests);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    requests[i] = std::make_shared<StillMessage>(batch[i]);
    if (batch[i].direction == comm::Direction::Receive) clear(batch[i]);
  }
}

bool StillCommunicator::do_is_complete(const comm::Pending& request) {
  return is_still(request) || inner_.is_complete(share(request));
}

std::size_t StillCommunicator::do_wait_any(std::span<const comm::Request> requests,
                                           double timeout_s) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] && is_still(*requests[i])) return i;
  }
  return inner_.wait_any(requests, timeout_s);
}

void StillCommunicator::do_give_back(const comm::Pending& request) {
  inner_.give_back(share(request));
}

}  // namespace armillary::bench
