// The part of a communicator that all engines share: it checks arguments, fills in the default
// timeout, and skips empty requests; then it calls the virtual function of the engine.
#include "armillary/comm/communicator.h"

#include <algorithm>

#include "armillary/comm/collectives.h"
#include "armillary/comm/started_collective.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Returns its argument. @throws InvalidArgument outside (0, 1e9].
double checked_timeout(double timeout_s) {
  // 1e9 s is the largest power of ten whose nanoseconds, added to a clock, fit in 64 bits. The
  // comparison is written so that NaN fails too.
  if (!(timeout_s > 0 && timeout_s <= 1e9)) {
    fail<InvalidArgument>("wait: timeout {} s; more than 0 and at most 1e9 s is required",
                          timeout_s);
  }
  return timeout_s;
}

}  // namespace

Pending::Pending(const Message& message, std::int64_t bytes)
    : direction_(message.direction), peer_(message.peer), lane_(message.lane), bytes_(bytes) {}

Communicator::Communicator(int rank, int world, double timeout_s, int lanes, Communicator* root)
    : rank_(rank),
      world_(world),
      lanes_(lanes),
      timeout_s_(checked_timeout(timeout_s)),
      root_(root != nullptr ? root : this) {
  if (lanes < 1) fail<InvalidArgument>("communicator: {} lanes; at least 1 is required", lanes);
}

Communicator::~Communicator() {
  if (root_ != this && rank_state()) rank_state()->forget(*this);
}

void Communicator::set_timeout(double timeout_s) {
  timeout_s_ = checked_timeout(timeout_s);
}

Request Communicator::isend(int peer, int lane, std::span<const Strided> parts) {
  return start_one({Direction::Send, peer, lane, parts});
}

Request Communicator::irecv(int peer, int lane, std::span<const Strided> parts) {
  return start_one({Direction::Receive, peer, lane, parts});
}

std::vector<Request> Communicator::start(std::span<const Message> batch) {
  std::vector<Request> requests(batch.size());
  start(batch, requests);
  return requests;
}

void Communicator::start(std::span<const Message> batch, std::span<Request> requests) {
  ARMILLARY_CHECK(requests.size() == batch.size());
  // All are checked before any is started, so a refused batch leaves no message behind.
  for (const Message& message : batch) check(message);
  do_start(batch, requests);
}

bool Communicator::is_complete(const Request& request) {
  if (!request) return true;
  return request->kind() == PendingKind::Message ? do_is_complete(*request)
                                                 : collective_is_complete(*request);
}

bool Communicator::collective_is_complete(const Pending& request) {
  return static_cast<const StartedCollective&>(request).look(
      [&](const Pending& message) { return do_is_complete(message); });
}

std::size_t Communicator::wait_any_collective(std::span<const Request> requests, double timeout_s) {
  std::vector<Request> messages;    // All that are under way,
  std::vector<std::size_t> owners;  // and the request that each belongs to.
  while (true) {
    messages.clear();
    owners.clear();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!requests[i]) continue;
      std::span<const Request> open = requests.subspan(i, 1);
      if (requests[i]->kind() == PendingKind::Collective) {
        if (collective_is_complete(*requests[i])) return i;
        open = static_cast<const StartedCollective&>(*requests[i]).messages;
      }
      messages.insert(messages.end(), open.begin(), open.end());
      owners.resize(messages.size(), i);
    }
    const std::size_t owner = owners[do_wait_any(messages, timeout_s)];
    if (requests[owner]->kind() == PendingKind::Message) return owner;
  }
}

void Communicator::wait(const Request& request, std::optional<double> timeout_s) {
  if (!request) return;
  if (request->kind() == PendingKind::Message) {
    wait_any({&request, 1}, timeout_s);
    return;
  }
  // One after the other: an engine may be quicker where it waits for one message.
  wait_all(static_cast<const StartedCollective&>(*request).messages, timeout_s);
  ARMILLARY_CHECK(collective_is_complete(*request));
}

std::size_t Communicator::wait_any(std::span<const Request> requests,
                                   std::optional<double> timeout_s) {
  // A list without a request would be a wait that never ends.
  const bool any =
      std::any_of(requests.begin(), requests.end(), [](auto& r) { return r != nullptr; });
  if (!any) {
    fail<InvalidArgument>("wait_any: {}, all empty; one under way is required",
                          count_of(requests.size(), "request"));
  }
  const double most_s = checked_timeout(timeout_s.value_or(timeout_s_));
  const bool collective = std::any_of(requests.begin(), requests.end(), [](auto& request) {
    return request && request->kind() == PendingKind::Collective;
  });
  return collective ? wait_any_collective(requests, most_s) : do_wait_any(requests, most_s);
}

void Communicator::wait_all(std::span<const Request> requests, std::optional<double> timeout_s) {
  for (const Request& request : requests) wait(request, timeout_s);
}

void Communicator::give_back(const Request& request) {
  // A receive whose bytes were copied has borrowed nothing, and neither has a send.
  if (request && !request->borrowed().empty()) do_give_back(*request);
}

Collectives& Communicator::collectives() {
  // Made late, because the constructor of this class cannot call a virtual function of the engine.
  if (!collectives_) collectives_ = make_collectives();
  return *collectives_;
}

std::unique_ptr<Collectives> Communicator::make_collectives() {
  return std::make_unique<Collectives>(*this);
}

std::string Communicator::describe(std::span<const Request> requests) const {
  std::string text;
  for (const Request& request : requests) {
    if (!request) continue;
    const bool send = request->direction() == Direction::Send;
    text += fmt::format("{}rank {} {} {} {} rank {} on lane {}", text.empty() ? "" : ", ", rank_,
                        send ? "sends" : "receives", count_of(request->bytes(), "byte"),
                        send ? "to" : "from", request->peer(), request->lane());
  }
  return text;
}

Request Communicator::start_one(const Message& message) {
  Request request;
  start({&message, 1}, {&request, 1});
  return request;
}

void Communicator::check(const Message& message) const {
  // Peer and lane.
  const char* verb = message.direction == Direction::Send ? "isend" : "irecv";
  if (message.peer < 0 || message.peer >= world_) {
    fail<InvalidArgument>("{}: peer {}; a rank in [0, {}) is required", verb, message.peer, world_);
  }
  if (message.peer == rank_) {
    fail<InvalidArgument>("{}: peer {} is this rank itself; another rank is required", verb, rank_);
  }
  if (message.lane < 0 || message.lane >= lanes_) {
    fail<InvalidArgument>("{}: lane {}; a lane in [0, {}) is required", verb, message.lane, lanes_);
  }
  // Memory: sizes, rows that lie apart, an address if there are bytes, a device the engine takes.
  for (const Strided& part : message.parts) {
    const bool sizes = part.rows >= 0 && part.row_bytes >= 0;
    const bool apart = part.rows <= 1 || part.stride_bytes >= part.row_bytes;
    const bool memory = part.data || part.rows == 0 || part.row_bytes == 0;
    if (!sizes || !apart || !memory) {
      fail<InvalidArgument>(
          "{}: {} of {}, {} apart, at {}; sizes >= 0, rows that do not overlap and "
          "memory "
          "that is not null are required",
          verb, count_of(part.rows, "row"), count_of(part.row_bytes, "byte"), part.stride_bytes,
          static_cast<const void*>(part.data));
    }
    if (!takes(part.device)) {
      fail<InvalidArgument>("{}: memory of device {}; this engine takes {}", verb, part.device,
                            taken_memory());
    }
  }
}

}  // namespace armillary::comm
