// exchange.h: one batch of messages in which every rank sends to every other rank and receives from
// it. Internal to the collectives, which are built of it.
//
//   step 1, 2, .., P - 1     rank r   receives from r - step, sends to r + step, modulo P
//
// Why no call needs a message in front: the first that a rank does in any collective is to receive
// from the rank before it and to send to the one behind it, without waiting, both with the label of
// the call. If not all ranks make the same call, two neighbours of this ring differ, and the second
// of them finds it.
#pragma once

#include <span>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/label.h"

namespace armillary::comm {

/// The bytes of an array as a part of a message.
inline Strided bytes_of(const Array& values) {
  return whole(std::span(values.data, static_cast<std::size_t>(values.bytes())));
}

/// Starts to send the array `to(peer)` to every other rank and to receive `from(peer)` from it, on
/// kCollectiveLane. `label(sender, receiver)` is null or a label that stays valid as the memory.
/// The first request is that of the message from the rank before. A world of 1 sends nothing.
template <class To, class From, class LabelOf>
std::vector<Request> start_exchange(Communicator& comm, const To& to, const From& from,
                                    const LabelOf& label) {
  const int P = comm.world();
  const int self = comm.rank();
  std::vector<Strided> parts;
  std::vector<Message> batch;
  parts.reserve(2 * static_cast<std::size_t>(P));  // Messages point into the list.
  const auto add = [&](Direction direction, int peer, const Array& array,
                       const Label* label_of_it) {
    parts.push_back(bytes_of(array));
    batch.push_back({.direction = direction,
                     .peer = peer,
                     .lane = kCollectiveLane,
                     .parts = {&parts.back(), 1},
                     .label = label_of_it});
  };
  for (int step = 1; step < P; ++step) {
    // In each step every rank has another peer, so that not all ranks send to rank 0 first.
    const int next = (self + step) % P;
    const int previous = (self - step + P) % P;
    add(Direction::Receive, previous, from(previous), label(previous, self));
    add(Direction::Send, next, to(next), label(self, next));
  }
  return comm.start(batch);
}

/// The same with one label, or null; returns when all messages are done. @throws CommError as
/// Communicator.
template <class To, class From>
void exchange(Communicator& comm, const Label* call, const To& to, const From& from) {
  comm.wait_all(start_exchange(comm, to, from, [&](int, int) { return call; }));
}

}  // namespace armillary::comm
