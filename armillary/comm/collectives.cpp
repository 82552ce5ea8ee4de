#include "armillary/comm/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

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

/// A collective as one rank calls it; the same bytes on all ranks, or nothing moves.
struct Call {
  std::array<char, 16> operation = {};
  std::array<char, 8> dtype = {};
  std::int64_t count = 0;  ///< Elements of each rank.
  std::int64_t root = -1;  ///< Of what has one.

  bool operator==(const Call&) const = default;
};
static_assert(sizeof(Call) == 40 && std::has_unique_object_representations_v<Call>);

Call call_of(std::string_view operation, std::string_view dtype, std::size_t count, int root = -1) {
  Call call{.count = static_cast<std::int64_t>(count), .root = root};
  ARMILLARY_CHECK(operation.size() < call.operation.size() && dtype.size() < call.dtype.size());
  std::ranges::copy(operation, call.operation.begin());
  std::ranges::copy(dtype, call.dtype.begin());
  return call;
}

/// "broadcast of 12 byte from rank 1"
std::string text_of(const Call& call) {
  std::string text = call.operation.data();
  if (call.dtype[0]) text += fmt::format(" of {} {}", call.count, call.dtype.data());
  if (call.root >= 0) text += fmt::format(" from rank {}", call.root);
  return text;
}

/// Returns when all ranks are known to make the same call.
void agree(Communicator& comm, Call mine) {
  if (comm.world() == 1) return;
  std::vector<Call> calls(comm.world(), mine);
  exchange(
      comm, [&](int) { return std::span(&mine, 1); },
      [&](int rank) { return std::span(&calls[rank], 1); });
  const auto other = std::ranges::find_if(calls, [&](const Call& c) { return c != calls[0]; });
  if (other == calls.end()) return;
  try {  // Until all ranks have all calls: who leaves first ends the group.
    const auto nothing = [](int) { return std::span<std::byte>(); };
    exchange(comm, nothing, nothing);
  } catch (const CommError&) {  // Somebody has left, and so all had come.
  }
  fail<InvalidArgument>(
      "{}: rank 0 calls {}, rank {} calls {}; the same call is required on all ranks",
      calls[0].operation.data(), text_of(calls[0]), other - calls.begin(), text_of(*other));
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
  agree(comm, call_of("all_reduce_sum", "fp32", values.size()));
  reduce(comm, values);
}

void all_reduce_sum(Communicator& comm, std::span<double> values) {
  agree(comm, call_of("all_reduce_sum", "fp64", values.size()));
  reduce(comm, values);
}

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root) {
  const int P = comm.world();
  if (root < 0 || root >= P) {
    fail<InvalidArgument>("broadcast: root {}; a rank in [0, {}) is required", root, P);
  }
  agree(comm, call_of("broadcast", "byte", bytes.size(), root));
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
  agree(comm, call_of("all_gather", "byte", mine.size()));
  const auto place = [&](int rank) { return all.subspan(rank * mine.size(), mine.size()); };
  if (!mine.empty()) std::memmove(place(comm.rank()).data(), mine.data(), mine.size());
  exchange(
      comm, [&](int) { return mine; }, place);
}

void barrier(Communicator& comm) {
  agree(comm, call_of("barrier", "", 0));
}

}  // namespace armillary::comm
