// collectives.h: operations that all ranks of a group call together: sums, gathers, broadcasts.
//
// An engine (communicator.h) may bring its own; the default is built on messages alone. All ranks
// call the same function with equal counts, in the same order. With the default, results are
// bitwise the same on all ranks and in every run, whatever the timing, and each of P ranks sends
// (and receives) so many messages and bytes, with n the bytes of one rank's values or part:
//
//   all_reduce       2 (P-1) a segment     2 n (P-1)/P; up to one element per rank and segment more
//   reduce_scatter   P-1 a segment         n (P-1)
//   all_gather       P-1                   n (P-1)
//   all_to_all       P-1                   n (P-1)
//   broadcast        P-1 from all ranks    at most n ceil(log2 P) from the root; n (P-1) from all
//                    and 1 of each
//   barrier          ceil(log2 P)          0
//
// Nothing is sent in front of the data: the first message to each rank carries what this rank
// calls, in 56 bytes (label.h). A world of 1 sends nothing. Memory belongs to the function until it
// returns.
//
// @throws InvalidArgument from every function, as said below, on the rank whose argument is wrong;
// its exception ends the other ranks. CommError as Communicator does; in particular, ranks that
// call different collectives, or differ in dtype, count, reduction, root, or in whether their
// memory is the host's, end the group on every rank, before data is used: "rank 0 calls .., rank 1
// calls ..; the same call is required on all ranks". It is told at once, when two ranks that differ
// have called.
#pragma once

#include <cstddef>
#include <span>

#include "armillary/comm/array.h"
#include "armillary/comm/communicator.h"
#include "armillary/comm/reduce.h"

namespace armillary::comm {

/// Lane of all collectives. Plans leave it free (it is their compute lane), so a collective may be
/// called while messages of a plan are under way.
inline constexpr int kCollectiveLane = 0;

/// Replaces `values` by their sum or largest over all ranks, in place; see reduce() for rounding.
/// Addends are taken in rank order. Works through segments of 2^20 elements, each in two exchanges:
/// every rank receives its 1/P of the segment from all others and reduces it, then sends the result
/// to all. Extra memory: one segment. @throws InvalidArgument if the dtype is Byte.
void all_reduce(Communicator& comm, const Array& values, Reduction reduction = Reduction::Sum);
void all_reduce_sum(Communicator& comm, std::span<float> values);
void all_reduce_sum(Communicator& comm, std::span<double> values);

/// Fills `mine` with the sum or largest of part rank() of all ranks' `all`, which is not written.
/// `mine` may lie in `all` as part rank(). Rounding and extra memory are those of all_reduce.
/// @throws InvalidArgument if dtypes or devices differ, dtypes are Byte, or all.count != world *
/// mine.count.
void reduce_scatter(Communicator& comm, const Array& all, const Array& mine,
                    Reduction reduction = Reduction::Sum);

/// Fills `all` with the `mine` of ranks 0, 1, ..., in this order. `mine` may lie in `all` as part
/// rank().
/// @throws InvalidArgument if dtypes or devices differ, or all.count != world * mine.count.
void all_gather(Communicator& comm, const Array& mine, const Array& all);
void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all);

/// Fills part r of `incoming` with part rank() of the `outgoing` of rank r. The two must not
/// overlap.
/// @throws InvalidArgument if dtypes, devices or counts differ, or the world does not divide the
/// count.
void all_to_all(Communicator& comm, const Array& outgoing, const Array& incoming);

/// Replaces `values` on all ranks by those of `root`, along a binomial tree.
/// @throws InvalidArgument if root is not a rank.
void broadcast(Communicator& comm, const Array& values, int root);
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root);

/// Returns when all ranks have called it.
void barrier(Communicator& comm);

// Started collectives: they return at once, and are done and waited for as messages are
// (communicator.h), several at a time and beside each other, in the order in which all ranks start
// them. Arrays are in host memory and belong to the collective until its request is done. Ranks
// that differ are told as above. The request of a world of 1 is done. Results are bitwise the same
// in every run.
//
// Counts are elements by rank, the same list on all ranks; without a list all ranks have the same.
// @throws InvalidArgument as the functions above, and for counts that are negative or do not add up
// to those of the arrays; on the rank whose argument is wrong. CommError from is_complete() and
// waits.

/// Fills `all` with the `mine` of ranks 0, 1, ..; counts[r] are those of rank r. `mine` may lie in
/// `all` at its place. Sent: n (P-1) bytes, received: those of the others; one message for each.
Request start_all_gather(Communicator& comm, const Array& mine, const Array& all,
                         std::span<const std::int64_t> counts = {});

/// Fills `mine` with the sum or largest of part rank() of all ranks' `all`; counts[r] are those of
/// part r. Addends are taken in rank order on the thread that finds the request done. `mine` may be
/// fp32 where `all` is bf16 or fp16, which travels: sums are then not rounded. It may lie in `all`
/// as its part, if the dtypes are equal. Extra memory: P - 1 parts of this rank.
Request start_reduce_scatter(Communicator& comm, const Array& all, const Array& mine,
                             Reduction reduction = Reduction::Sum,
                             std::span<const std::int64_t> counts = {});

/// Elements that this rank sends to each rank, and that it receives from each, itself included.
struct AllToAllCounts {
  std::span<const std::int64_t> outgoing = {};
  std::span<const std::int64_t> incoming = {};
};
/// Fills part r of `incoming` with part rank() of the `outgoing` of rank r. The two must not
/// overlap. Without counts the world divides both. Rank a sends to b as many as b receives from a.
Request start_all_to_all(Communicator& comm, const Array& outgoing, const Array& incoming,
                         const AllToAllCounts& counts = {});

/// The collectives of an engine, called with checked arguments. This class implements them by
/// messages between host memory, which carry the call; engines override them.
class Collectives {
 public:
  explicit Collectives(Communicator& comm) : comm_(comm) {}
  virtual ~Collectives() = default;

  virtual void all_reduce(const Array& values, Reduction reduction);
  virtual void reduce_scatter(const Array& all, const Array& mine, Reduction reduction);
  virtual void all_gather(const Array& mine, const Array& all);
  virtual void all_to_all(const Array& outgoing, const Array& incoming);
  virtual void broadcast(const Array& values, int root);
  virtual void barrier();

 protected:
  /// A barrier that also compares the call (call_labels.h): returns when all ranks are known to
  /// make it. For engines whose own collectives compare nothing.
  void agree(const Label& call);

  Communicator& comm_;
};

}  // namespace armillary::comm
