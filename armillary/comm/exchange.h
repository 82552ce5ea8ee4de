// exchange.h: bytes to and from every other rank. Internal to collectives.
#pragma once

#include <vector>

#include "armillary/comm/collectives.h"

namespace armillary::comm {

/// Sends the bytes `to(peer)` to and receives `from(peer)` from every other rank, in one batch, and
/// waits.
template <class To, class From>
void exchange(Communicator& comm, const To& to, const From& from) {
  std::vector<Strided> parts;
  std::vector<Message> batch;
  parts.reserve(2 * static_cast<std::size_t>(comm.world()));  // Messages point into it.
  const auto add = [&](Direction direction, int peer, Strided part) {
    parts.push_back(part);
    batch.push_back({direction, peer, kCollectiveLane, {&parts.back(), 1}});
  };
  for (int step = 1; step < comm.world(); ++step) {
    // Step by step every rank has another peer, so that not all send to rank 0 first.
    const int next = (comm.rank() + step) % comm.world();
    const int previous = (comm.rank() - step + comm.world()) % comm.world();
    add(Direction::Send, next, whole(to(next)));
    add(Direction::Receive, previous, whole(from(previous)));
  }
  comm.wait_all(comm.start(batch));
}

}  // namespace armillary::comm
