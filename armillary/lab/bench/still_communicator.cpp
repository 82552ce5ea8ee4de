#include "armillary/lab/bench/still_communicator.h"

#include <cstring>
#include <utility>
#include <vector>

namespace armillary::bench {
namespace {

/// A message without its bytes: the inner one that paces it, or none if it was over when it
/// started.
class StillMessage : public comm::Pending {
 public:
  StillMessage(const comm::Message& message, comm::Request pace)
      : Pending(message, comm::total_bytes(message.parts)), inner(std::move(pace)) {}
  const comm::Request inner;
};

const StillMessage* as_still(const comm::Pending& request) {
  return dynamic_cast<const StillMessage*>(&request);
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
  if (mode_ == MessageMode::Move) return inner_.start(batch, requests);
  if (mode_ == MessageMode::Pace) {
    std::vector<comm::Message> pace(batch.begin(), batch.end());
    for (comm::Message& message : pace) message.parts = {};
    inner_.start(pace, requests);
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    requests[i] = std::make_shared<StillMessage>(batch[i], std::move(requests[i]));
    if (batch[i].direction == comm::Direction::Receive) clear(batch[i]);
  }
}

bool StillCommunicator::do_is_complete(const comm::Pending& request) {
  const StillMessage* const still = as_still(request);
  if (!still) return inner_.is_complete(share(request));
  return !still->inner || inner_.is_complete(still->inner);
}

std::size_t StillCommunicator::do_wait_any(std::span<const comm::Request> requests,
                                           double timeout_s) {
  std::vector<comm::Request> inner(requests.begin(), requests.end());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const StillMessage* const still = requests[i] ? as_still(*requests[i]) : nullptr;
    if (!still) continue;
    if (!still->inner) return i;
    inner[i] = still->inner;
  }
  return inner_.wait_any(inner, timeout_s);
}

void StillCommunicator::do_give_back(const comm::Pending& request) {
  const StillMessage* const still = as_still(request);
  if (!still) inner_.give_back(share(request));
}

}  // namespace armillary::bench
