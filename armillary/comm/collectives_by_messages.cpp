// The default implementation of Collectives, by messages between host memory. All but broadcast are
// one or two exchanges, in which every rank sends a piece to every other rank at once.
//
//   all_reduce       per segment: each rank collects and reduces its piece, then sends it to all
//   reduce_scatter   per segment: each rank collects and reduces its piece
//   all_gather, all_to_all   one exchange, straight from and into the caller's memory
//   broadcast        a binomial tree
#include <algorithm>
#include <cstring>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/exchange.h"
#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Elements that are reduced at a time; it bounds the extra memory.
constexpr std::int64_t kSegmentElements = std::int64_t{1} << 20;

void expect_host(const Array& values) {
  if (values.device == kHost) return;
  fail<InvalidArgument>("collectives: memory of device {}; this engine takes that of the host",
                        values.device);
}

/// Elements [begin, end) of an array.
Array part(const Array& values, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = size_of(values.dtype);
  return {values.data + begin * size, end - begin, values.dtype, values.device};
}

/// The part of one rank in `all`, which has `count` elements for each.
Array part_of(const Array& all, std::int64_t count, int rank) {
  return part(all, rank * count, (rank + 1) * count);
}

std::span<std::byte> bytes(const Array& values) {
  return {values.data, static_cast<std::size_t>(values.bytes())};
}

void copy(const Array& from, const Array& to) {
  if (from.count > 0) std::memmove(to.data, from.data, bytes(from).size());
}

/// Sends `piece(rank)` to each rank, and fills `result` with the reduction of the pieces that all
/// ranks, this one included, have for this rank. `scratch` has room for a piece of each rank.
template <class Piece>
void reduce_piece(Communicator& comm, const Piece& piece, const Array& result, Reduction reduction,
                  std::span<std::byte> scratch) {
  // Addends in rank order: pieces of others arrive in scratch, this rank's own is read in place.
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

/// Memory for a piece of each rank, when a segment of `segment` elements is cut into pieces.
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
    // The reduced piece lands in `values`, from there it goes to the same place on all ranks.
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
  // Elements of one rank's part per segment, so that the pieces of all ranks make a segment.
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
  // Places are ranks counted from the root. Place i receives from i without its lowest set bit,
  // then sends to i + b for every power of two b below that bit. With 8 ranks, place 4 receives
  // from 0 and sends to 6 and 5; the root sends to 4, 2 and 1.
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
