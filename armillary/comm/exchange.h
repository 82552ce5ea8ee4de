// exchange.h: one batch of messages in which every rank sends to every other rank and receives from
// it. Internal to the collectives, which are built of it.
//
//   step 1, 2, .., P - 1     rank r   sends to r + step, receives from r - step, modulo P
#pragma once

#include <vector>

#include "armillary/comm/collectives.h"

namespace armillary::comm {

/// Sends the bytes `to(peer)` to every other rank, receives the bytes `from(peer)` from it, and
/// returns when all messages are done. Both functions return a span of bytes; a span may be empty,
/// but the two ends of a message must agree in size. The messages are one batch on
/// kCollectiveLane. A world of 1 sends nothing. @throws CommError as Communicator does.
template <class To, class From>
void exchange(Communicator& comm, const To& to, const From& from) {
  std::vector<Strided> parts;
  std::vector<Message> batch;
  parts.reserve(2 * static_cast<std::size_t>(comm.world()));  // Messages point into the list.
  const auto add = [&](Direction direction, int peer, Strided part) {
    parts.push_back(part);
    batch.push_back({direction, peer, kCollectiveLane, {&parts.back(), 1}});
  };
  for (int step = 1; step < comm.world(); ++step) {
    // In each step every rank has another peer, so that not all ranks send to rank 0 first.
    const int next = (comm.rank() + step) % comm.world();
    const int previous = (comm.rank() - step + comm.world()) % comm.world();
    add(Direction::Send, next, whole(to(next)));
    add(Direction::Receive, previous, whole(from(previous)));
  }
  comm.wait_all(comm.start(batch));
}

}  // namespace armillary::comm
