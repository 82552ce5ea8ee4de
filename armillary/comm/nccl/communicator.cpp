// communicator.cpp: messages by the place of their memory: those of the host go to the host's
// group, those of the device to NCCL's lanes. A wait for host messages alone is the host group's,
// unless works are queued; any other one looks at both in turn, with one deadline.
#include "armillary/comm/nccl/communicator.h"

#include <algorithm>
#include <utility>

#include "armillary/comm/nccl/collectives.h"
#include "armillary/comm/nccl/pending.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Whether the host group carries a message. Both ends agree on messages without bytes, as their
/// sizes are equal; those with a label are the host's, which compares them. @throws InvalidArgument
/// if its memory is of both kinds.
bool is_of_host(const Message& message) {
  int host = 0;
  int device = 0;
  for (const Strided& part : message.parts) {
    if (part.rows > 0 && part.row_bytes > 0) ++(part.device == kHost ? host : device);
  }
  if (host > 0 && device > 0) {
    fail<InvalidArgument>(
        "nccl: a message with {} in host memory and {} on the device; one place is required",
        count_of(host, "part"), device);
  }
  const auto is_host = [](const Strided& part) { return part.device == kHost; };
  return host > 0 || (message.label != nullptr && std::ranges::all_of(message.parts, is_host));
}

const NcclPending* nccl_part(const Pending& request) {
  return dynamic_cast<const NcclPending*>(&request);
}

}  // namespace

NcclCommunicator::NcclCommunicator(NcclRank& rank, Communicator& part)
    : Communicator(part.rank(), part.world(), part.timeout_s(), rank.options().lanes),
      rank_(rank),
      part_(part),
      lanes_(rank.make_lanes(part)) {}

NcclCommunicator::NcclCommunicator(NcclRank& rank, std::unique_ptr<Communicator> part,
                                   Communicator& root)
    : Communicator(part->rank(), part->world(), part->timeout_s(), rank.options().lanes, &root),
      rank_(rank),
      owned_part_(std::move(part)),
      part_(*owned_part_),
      lanes_(rank.make_lanes(part_)) {}

NcclCommunicator::~NcclCommunicator() {
  try {
    rank_.end_lanes(lanes_);
  } catch (const std::exception&) {
    // The group has failed, and its lanes are aborted.
  }
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  rank_.throw_if_failed();
  std::unique_ptr<Communicator> part = part_.split(color, key);
  if (!part) return nullptr;
  part->set_timeout(timeout_s());
  return std::make_unique<NcclCommunicator>(rank_, std::move(part), root());
}

std::unique_ptr<PeerWait> NcclCommunicator::begin_peer_wait(PeerWaitOptions wait) {
  return part_.begin_peer_wait(std::move(wait));
}

void NcclCommunicator::do_start(std::span<const Message> batch, std::span<Request> requests) {
  rank_.throw_if_failed();
  std::vector<std::size_t> of_host;
  std::vector<std::size_t> of_device;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    (is_of_host(batch[i]) ? of_host : of_device).push_back(i);
  }
  if (of_host.empty()) return lanes_.start(batch, requests);
  if (of_device.empty()) return part_.start(batch, requests);
  // Each engine gets its own messages, in order.
  const auto start = [&](auto& engine, const std::vector<std::size_t>& places) {
    std::vector<Message> messages;
    messages.reserve(places.size());
    std::vector<Request> started(places.size());
    for (const std::size_t place : places) messages.push_back(batch[place]);
    engine.start(messages, started);
    for (std::size_t i = 0; i < places.size(); ++i) requests[places[i]] = std::move(started[i]);
  };
  start(part_, of_host);
  start(lanes_, of_device);
}

bool NcclCommunicator::is_over(const Pending& request) {
  const NcclPending* const own = nccl_part(request);
  return own ? own->is_complete() : part_.do_is_complete(request);
}

bool NcclCommunicator::do_is_complete(const Pending& request) {
  if (is_over(request)) return true;
  rank_.progress();
  return is_over(request);
}

// Requests of a host group name ranks of the group that it was split off.
std::vector<int> NcclCommunicator::peers_on_host(std::span<const Request> requests) const {
  std::vector<int> peers;
  for (const Request& request : requests) {
    if (!request) continue;
    int peer = request->peer();
    if (!nccl_part(*request)) {
      const auto is_peer = [&](int rank) { return part_.root_rank(rank) == request->peer(); };
      for (peer = 0; peer < world() && !is_peer(peer);) ++peer;
    }
    if (peer < world()) peers.push_back(peer);
  }
  return lanes_.on_host(std::move(peers));
}

std::size_t NcclCommunicator::do_wait_any(std::span<const Request> requests, double timeout_s) {
  const auto is_own = [](const Request& request) { return request && nccl_part(*request); };
  // The peer that is waited for may itself wait for a work of this rank that is still queued.
  if (std::ranges::none_of(requests, is_own) && !rank_.needs_progress()) {
    return part_.do_wait_any(requests, timeout_s);
  }
  std::size_t index = 0;
  const auto one_is_over = [&] {
    const auto over =
        std::ranges::find_if(requests, [&](const Request& r) { return r && is_over(*r); });
    index = static_cast<std::size_t>(over - requests.begin());
    return over != requests.end();
  };
  rank_.wait_until(one_is_over,
                   {.peers = peers_on_host(requests), .timeout_s = timeout_s, .describe = [&] {
                      return fmt::format("wait: {} not done", describe(requests));
                    }});
  return index;
}

void NcclCommunicator::run(const char* operation,
                           std::function<void(NcclComm, GpuStream)> collective) {
  rank_.throw_if_failed();
  const std::uint64_t work = lanes_.start_collective(kCollectiveLane, std::move(collective));
  rank_.wait_until([&] { return lanes_.is_complete(kCollectiveLane, work); },
                   {.peers = lanes_.others_on_host(), .timeout_s = timeout_s(), .describe = [&] {
                      return fmt::format("{}: rank {} not done", operation, rank());
                    }});
}

std::string NcclCommunicator::taken_memory() const {
  return fmt::format("that of the host and of device {}", rank_.device());
}

std::unique_ptr<Collectives> NcclCommunicator::make_collectives() {
  return std::make_unique<NcclCollectives>(*this);
}

}  // namespace armillary::comm
