// link_communicator.cpp: a message is moved by the inner group at once, and is over when its links
// say so. A receiver asks for that only when it was moved, so its sender has told it.
#include "armillary/lab/bench/link_communicator.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::bench {

Links::Links(int world, double bytes_per_s)
    : bytes_per_s_(bytes_per_s),
      sender_free_(static_cast<std::size_t>(world)),
      receiver_free_(static_cast<std::size_t>(world)) {
  if (!(bytes_per_s > 0)) {
    fail<InvalidArgument>("bench: links of {} bytes/s; a rate above 0 is required", bytes_per_s);
  }
}

Links::Clock::time_point Links::send(const Key& message, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Clock::time_point& sender = sender_free_.at(static_cast<std::size_t>(std::get<0>(message)));
  Clock::time_point& receiver = receiver_free_.at(static_cast<std::size_t>(std::get<1>(message)));
  const std::chrono::duration<double> taken(static_cast<double>(bytes) / bytes_per_s_);
  const Clock::time_point end = std::max({Clock::now(), sender, receiver}) +
                                std::chrono::duration_cast<Clock::duration>(taken);
  sender = receiver = end;
  ends_[message] = end;
  return end;
}

Links::Clock::time_point Links::take_end(const Key& message) {
  const std::lock_guard lock(mutex_);
  const auto node = ends_.extract(message);
  ARMILLARY_CHECK(!node.empty());
  return node.mapped();
}

/// A message of the inner group, and when it is over on its links, if that is known.
class LinkCommunicator::LinkMessage : public comm::Pending {
 public:
  LinkMessage(const comm::Message& message, comm::Request moved, const Links::Key& of)
      : Pending(message, comm::total_bytes(message.parts)), inner(std::move(moved)), key(of) {}

  std::span<const comm::Strided> borrowed() const override { return inner->borrowed(); }

  const comm::Request inner;
  const Links::Key key;
  /// Known of a send when it starts, of a receive when it was moved.
  mutable std::optional<Links::Clock::time_point> end;
};

std::unique_ptr<comm::Communicator> LinkCommunicator::split(int color, int key) {
  return inner_.split(color, key);
}

std::unique_ptr<comm::PeerWait> LinkCommunicator::begin_peer_wait(comm::PeerWaitOptions wait) {
  return inner_.begin_peer_wait(std::move(wait));
}

Links::Key LinkCommunicator::key_of(const comm::Message& message) {
  const bool sends = message.direction == comm::Direction::Send;
  const int from = sends ? rank() : message.peer;
  const int to = sends ? message.peer : rank();
  return {from, to, message.lane, started_[{from, to, message.lane}]++};
}

void LinkCommunicator::do_start(std::span<const comm::Message> batch,
                                std::span<comm::Request> requests) {
  std::vector<Links::Key> keys;
  std::vector<std::optional<Links::Clock::time_point>> ends(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Links::Key& key = keys.emplace_back(key_of(batch[i]));
    if (batch[i].direction != comm::Direction::Send) continue;
    // Before the inner group has it, so that the receiver finds its end.
    ends[i] = links_.send(key, comm::total_bytes(batch[i].parts));
  }
  inner_.start(batch, requests);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto message = std::make_shared<LinkMessage>(batch[i], std::move(requests[i]), keys[i]);
    message->end = ends[i];
    requests[i] = std::move(message);
  }
}

Links::Clock::time_point LinkCommunicator::end_of(const LinkMessage& message, Links& links) {
  if (!message.end) message.end = links.take_end(message.key);
  return *message.end;
}

bool LinkCommunicator::do_is_complete(const comm::Pending& request) {
  const auto& message = static_cast<const LinkMessage&>(request);
  return inner_.is_complete(message.inner) && end_of(message, links_) <= Links::Clock::now();
}

std::size_t LinkCommunicator::do_wait_any(std::span<const comm::Request> requests,
                                          double timeout_s) {
  constexpr std::chrono::microseconds kLook(100);  // others may be moved in between
  while (true) {
    std::vector<comm::Request> not_moved(requests.size());
    std::optional<Links::Clock::time_point> first_end;
    const Links::Clock::time_point now = Links::Clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!requests[i]) continue;
      const auto& message = static_cast<const LinkMessage&>(*requests[i]);
      if (!inner_.is_complete(message.inner)) {
        not_moved[i] = message.inner;
        continue;
      }
      const Links::Clock::time_point end = end_of(message, links_);
      if (end <= now) return i;
      first_end = std::min(end, first_end.value_or(end));
    }
    if (first_end) {
      std::this_thread::sleep_until(std::min(*first_end, now + kLook));
    } else {
      inner_.wait_any(not_moved, timeout_s);
    }
  }
}

void LinkCommunicator::do_give_back(const comm::Pending& request) {
  inner_.give_back(static_cast<const LinkMessage&>(request).inner);
}

}  // namespace armillary::bench
