#include "armillary/comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

constexpr std::size_t kSegmentElements = std::size_t{1} << 20;

/// Sends `to(peer)` to and receives `from(peer)` from every other rank, in one batch, and waits.
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

/// One segment of all_reduce_sum; `scratch` has at least its size.
template <class T>
void reduce_segment(Communicator& comm, std::span<T> segment, std::span<T> scratch) {
  const int P = comm.world();
  const auto piece = [&](int rank) {
    const auto size = static_cast<std::int64_t>(segment.size());
    const std::int64_t begin = piece_begin(size, P, rank);
    return segment.subspan(begin, piece_begin(size, P, rank + 1) - begin);
  };
  // Phase 1 of 2: the piece this rank owns, from all ranks, then summed in rank order.
  const std::span<T> own = piece(comm.rank());
  const auto addend = [&](int rank) { return scratch.subspan(rank * own.size(), own.size()); };
  std::copy(own.begin(), own.end(), addend(comm.rank()).begin());
  exchange(comm, piece, addend);
  std::copy(addend(0).begin(), addend(0).end(), own.begin());
  for (int rank = 1; rank < P; ++rank) {
    const std::span<const T> x = addend(rank);
    for (std::size_t i = 0; i < own.size(); ++i) own[i] += x[i];
  }
  // Phase 2 of 2: every sum to everyone.
  exchange(
      comm, [&](int) { return own; }, piece);
}

template <class T>
void reduce(Communicator& comm, std::span<T> values) {
  if (comm.world() == 1) return;
  // Pieces differ by at most one element, so P pieces of the largest size fit.
  std::vector<T> scratch(std::min(values.size(), kSegmentElements) + comm.world());
  for (std::size_t begin = 0; begin < values.size(); begin += kSegmentElements) {
    const std::size_t size = std::min(kSegmentElements, values.size() - begin);
    reduce_segment(comm, values.subspan(begin, size), std::span<T>(scratch));
  }
}

}  // namespace

void all_reduce_sum(Communicator& comm, std::span<float> values) {
  reduce(comm, values);
}

void all_reduce_sum(Communicator& comm, std::span<double> values) {
  reduce(comm, values);
}

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root) {
  const int P = comm.world();
  if (root < 0 || root >= P) {
    fail<InvalidArgument>("broadcast: root {}; a rank in [0, {}) is required", root, P);
  }
  // Counted from root, rank i receives from i without its lowest bit, and sends to i + every lower
  // bit.
  const Strided part = whole(bytes);
  const int place = (comm.rank() - root + P) % P;
  int bit = 1;
  while (bit < P && (place & bit) == 0) bit *= 2;
  if (place > 0) {
    comm.wait(comm.irecv((place - bit + root) % P, kCollectiveLane, {&part, 1}));
  }
  std::vector<Request> sends;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit < P) {
      sends.push_back(comm.isend((place + bit + root) % P, kCollectiveLane, {&part, 1}));
    }
  }
  comm.wait_all(sends);
}

void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all) {
  if (all.size() != comm.world() * mine.size()) {
    fail<InvalidArgument>("all_gather: {} bytes for {} ranks of {} bytes; {} bytes are required",
                          all.size(), comm.world(), mine.size(), comm.world() * mine.size());
  }
  const auto place = [&](int rank) { return all.subspan(rank * mine.size(), mine.size()); };
  if (!mine.empty()) std::memmove(place(comm.rank()).data(), mine.data(), mine.size());
  exchange(
      comm, [&](int) { return mine; }, place);
}

void barrier(Communicator& comm) {
  all_gather(comm, {}, {});
}

}  // namespace armillary::comm
