// The default of Collectives: messages between host memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/exchange.h"
#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

constexpr std::int64_t kSegmentElements = std::int64_t{1} << 20;

void expect_host(const Array& values) {
  if (values.device == kHost) return;
  fail<InvalidArgument>("collectives: memory of device {}; this engine takes that of the host",
                        values.device);
}

Array part(const Array& values, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = size_of(values.dtype);
  return {values.data + begin * size, end - begin, values.dtype, values.device};
}

/// The part of each rank, all of one count.
Array part_of(const Array& all, std::int64_t count, int rank) {
  return part(all, rank * count, (rank + 1) * count);
}

std::span<std::byte> bytes(const Array& values) {
  return {values.data, static_cast<std::size_t>(values.bytes())};
}

void copy(const Array& from, const Array& to) {
  if (from.count > 0) std::memmove(to.data, from.data, bytes(from).size());
}

/// Fills `result` from `piece(rank)`, what is sent to that rank; `scratch` has room for a piece of
/// each rank.
template <class Piece>
void reduce_piece(Communicator& comm, const Piece& piece, const Array& result, Reduction reduction,
                  std::span<std::byte> scratch) {
  std::vector<Array> addends;
  addends.reserve(static_cast<std::size_t>(comm.world()));
  for (int rank = 0; rank < comm.world(); ++rank) {
    addends.push_back(part_of({scratch.data(), 0, result.dtype}, result.count, rank));
  }
  addends[comm.rank()] = piece(comm.rank());
  exchange(
      comm, [&](int rank) { return bytes(piece(rank)); },
      [&](int rank) { return bytes(addends[rank]); });
  reduce(reduction, addends, result);
}

/// Room for a piece of each rank, of segments of so many elements.
std::vector<std::byte> scratch_for(const Communicator& comm, std::int64_t segment,
                                   const Array& values) {
  // Pieces differ by at most one element, so as many pieces of the largest size fit.
  return std::vector<std::byte>((segment + comm.world()) * size_of(values.dtype));
}

}  // namespace

void Collectives::all_reduce(const Array& values, Reduction reduction) {
  expect_host(values);
  const int P = comm_.world();
  if (P == 1) return;
  auto scratch = scratch_for(comm_, std::min(values.count, kSegmentElements), values);
  for (std::int64_t begin = 0; begin < values.count; begin += kSegmentElements) {
    const std::int64_t size = std::min(kSegmentElements, values.count - begin);
    const auto piece = [&](int rank) {
      return part(values, begin + piece_begin(size, P, rank),
                  begin + piece_begin(size, P, rank + 1));
    };
    const Array own = piece(comm_.rank());
    reduce_piece(comm_, piece, own, reduction, scratch);
    exchange(
        comm_, [&](int) { return bytes(own); }, [&](int rank) { return bytes(piece(rank)); });
  }
}

void Collectives::reduce_scatter(const Array& all, const Array& mine, Reduction reduction) {
  expect_host(all);
  expect_host(mine);
  if (comm_.world() == 1) return copy(all, mine);
  const std::int64_t most = std::max<std::int64_t>(kSegmentElements / comm_.world(), 1);
  auto scratch = scratch_for(comm_, std::min(mine.count, most) * comm_.world(), all);
  for (std::int64_t begin = 0; begin < mine.count; begin += most) {
    const std::int64_t end = std::min(begin + most, mine.count);
    const auto piece = [&](int rank) { return part(part_of(all, mine.count, rank), begin, end); };
    reduce_piece(comm_, piece, part(mine, begin, end), reduction, scratch);
  }
}

void Collectives::all_gather(const Array& mine, const Array& all) {
  expect_host(all);
  expect_host(mine);
  copy(mine, part_of(all, mine.count, comm_.rank()));
  exchange(
      comm_, [&](int) { return bytes(mine); },
      [&](int rank) { return bytes(part_of(all, mine.count, rank)); });
}

void Collectives::all_to_all(const Array& sent, const Array& received) {
  expect_host(sent);
  expect_host(received);
  const std::int64_t count = sent.count / comm_.world();
  const int rank = comm_.rank();
  copy(part_of(sent, count, rank), part_of(received, count, rank));
  exchange(
      comm_, [&](int peer) { return bytes(part_of(sent, count, peer)); },
      [&](int peer) { return bytes(part_of(received, count, peer)); });
}

void Collectives::broadcast(const Array& values, int root) {
  expect_host(values);
  // Counted from root, rank i receives from i without its lowest bit, and sends to i + every lower
  // bit.
  const int P = comm_.world();
  const Strided whole_part = whole(bytes(values));
  const int place = (comm_.rank() - root + P) % P;
  int bit = 1;
  while (bit < P && (place & bit) == 0) bit *= 2;
  if (place > 0) {
    comm_.wait(comm_.irecv((place - bit + root) % P, kCollectiveLane, {&whole_part, 1}));
  }
  std::vector<Request> sends;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit < P) {
      sends.push_back(comm_.isend((place + bit + root) % P, kCollectiveLane, {&whole_part, 1}));
    }
  }
  comm_.wait_all(sends);
}

}  // namespace armillary::comm
