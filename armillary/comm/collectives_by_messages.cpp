// The default implementation of Collectives, by messages between host memory, the first of which
// to each rank has the label of the call (exchange.h).
//
//   all_reduce       per segment: each rank collects and reduces its piece, then sends it to all
//   reduce_scatter   per segment: each rank collects and reduces its piece
//   all_gather, all_to_all   the started ones, waited for
//   broadcast        a binomial tree, behind a message without bytes to the next rank
//   barrier          ceil(log2 P) messages without bytes, to the ranks 1, 2, 4, .. behind this one
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "armillary/comm/call_labels.h"
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

void copy(const Array& from, const Array& to) {
  if (from.count > 0) std::memmove(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

/// Starts a message of one part.
Request start_part(Communicator& comm, Direction direction, int peer, const Label& call,
                   const Strided& part) {
  const Message message{.direction = direction,
                        .peer = peer,
                        .lane = kCollectiveLane,
                        .parts = {&part, 1},
                        .label = &call};
  return comm.start({&message, 1})[0];
}

/// Starts a message without bytes from the rank `distance` before this one and to that behind it,
/// and waits for the first. Returns the second.
Request pass_on(Communicator& comm, int distance, const Label& call) {
  const int P = comm.world();
  const auto message = [&](Direction direction, int peer) {
    return Message{
        .direction = direction, .peer = peer, .lane = kCollectiveLane, .parts = {}, .label = &call};
  };
  const std::array batch{message(Direction::Receive, (comm.rank() - distance + P) % P),
                         message(Direction::Send, (comm.rank() + distance) % P)};
  std::array<Request, 2> requests;
  comm.start(batch, requests);
  comm.wait(requests[0]);
  return std::move(requests[1]);
}

/// Room for the pieces of all other ranks, of `count` elements at most. It is not cleared: messages
/// fill what is read.
std::unique_ptr<std::byte[]> scratch_for(const Communicator& comm, std::int64_t count,
                                         const Array& values) {
  const std::int64_t bytes = (comm.world() - 1) * count * size_of(values.dtype);
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
}

/// Sends `piece(rank)` to each rank. Returns the pieces that all ranks, this one included, have for
/// this rank, in their order. Those of others are in `scratch`, this rank's own is read in place.
template <class Piece>
std::vector<Array> collect_pieces(Communicator& comm, const Label* call, const Piece& piece,
                                  std::byte* scratch) {
  const Array own = piece(comm.rank());
  std::vector<Array> addends;
  addends.reserve(static_cast<std::size_t>(comm.world()));
  for (int rank = 0; rank < comm.world(); ++rank) {
    const bool is_own = rank == comm.rank();
    addends.push_back(is_own ? own : Array{scratch, own.count, own.dtype});
    if (!is_own) scratch += own.bytes();
  }
  exchange(
      comm, call, [&](int rank) { return piece(rank); }, [&](int rank) { return addends[rank]; });
  return addends;
}

}  // namespace

// Values without elements are exchanged too, as messages without bytes: the ranks may differ in
// their number. After the first exchange all ranks are known to make this call.

void Collectives::all_reduce(const Array& values, Reduction reduction) {
  expect_host(values);
  const int P = comm_.world();
  if (P == 1) return;
  const Label call = all_reduce_label(values, reduction);
  // Pieces differ by one element at most.
  const auto scratch = scratch_for(comm_, std::min(values.count, kSegmentElements) / P + 1, values);
  std::int64_t begin = 0;
  do {
    const std::int64_t size = std::min(kSegmentElements, values.count - begin);
    // The reduced piece lands in `values`, from there it goes to the same place on all ranks.
    const auto piece = [&](int rank) {
      return part(values, begin + piece_begin(size, P, rank),
                  begin + piece_begin(size, P, rank + 1));
    };
    const Array own = piece(comm_.rank());
    reduce(reduction, collect_pieces(comm_, begin == 0 ? &call : nullptr, piece, scratch.get()),
           own);
    exchange(
        comm_, nullptr, [&](int) { return own; }, piece);
    begin += size;
  } while (begin < values.count);
}

void Collectives::reduce_scatter(const Array& all, const Array& mine, Reduction reduction) {
  expect_host(all);
  expect_host(mine);
  if (comm_.world() == 1) return copy(all, mine);
  // Elements of one rank's part per segment, so that the pieces of all ranks make a segment.
  const std::int64_t most = std::max<std::int64_t>(kSegmentElements / comm_.world(), 1);
  // In one segment its messages are those of the started one, which has this label too.
  const Label call = reduce_scatter_label(all, reduction, mine.count > most ? " in segments" : "");
  const auto scratch = scratch_for(comm_, std::min(mine.count, most), all);
  std::int64_t begin = 0;
  do {
    const std::int64_t end = std::min(begin + most, mine.count);
    const auto piece = [&](int rank) { return part(part_of(all, mine.count, rank), begin, end); };
    reduce(reduction, collect_pieces(comm_, begin == 0 ? &call : nullptr, piece, scratch.get()),
           part(mine, begin, end));
    begin = end;
  } while (begin < mine.count);
}

void Collectives::all_gather(const Array& mine, const Array& all) {
  expect_host(all);
  comm_.wait(start_all_gather(comm_, mine, all));
}

void Collectives::all_to_all(const Array& outgoing, const Array& incoming) {
  expect_host(outgoing);
  comm_.wait(start_all_to_all(comm_, outgoing, incoming));
}

void Collectives::broadcast(const Array& values, int root) {
  expect_host(values);
  const int P = comm_.world();
  if (P == 1) return;
  const Label call = broadcast_label(values, root);
  // Ranks with different roots might all send and none receive.
  const Request passed = pass_on(comm_, 1, call);
  // Places are ranks counted from the root. Place i receives from i without its lowest set bit,
  // then sends to i + b for every power of two b below that bit. With 8 ranks, place 4 receives
  // from 0 and sends to 6 and 5; the root sends to 4, 2 and 1.
  const Strided part = bytes_of(values);
  const int place = (comm_.rank() - root + P) % P;
  int bit = 1;
  while (bit < P && (place & bit) == 0) bit *= 2;
  if (place > 0) {
    comm_.wait(start_part(comm_, Direction::Receive, (place - bit + root) % P, call, part));
  }
  std::vector<Request> sends{passed};
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit >= P) continue;
    sends.push_back(start_part(comm_, Direction::Send, (place + bit + root) % P, call, part));
  }
  comm_.wait_all(sends);
}

void Collectives::barrier() {
  agree(label_of("barrier"));
}

// After the step of distance d a rank knows that the 2 d - 1 ranks before it have come.
void Collectives::agree(const Label& call) {
  std::vector<Request> sends;
  for (int distance = 1; distance < comm_.world(); distance *= 2) {
    sends.push_back(pass_on(comm_, distance, call));
  }
  comm_.wait_all(sends);
}

}  // namespace armillary::comm
