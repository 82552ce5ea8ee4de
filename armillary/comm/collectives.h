// collectives.h: operations that all ranks of a group call together: sums, gathers, broadcasts.
//
// An engine (communicator.h) may bring its own; the default is built on messages alone. All ranks
// call the same function with equal counts, in the same order. With the default, results are
// bitwise the same on all ranks and in every run, whatever the timing, and each of P ranks sends
// (and receives) so many bytes, with n the bytes of one rank's values or part:
//
//   all_reduce       2 n (P-1)/P; up to one element per rank and segment more, by rounding
//   reduce_scatter   n (P-1)
//   all_gather       n (P-1)
//   all_to_all       n (P-1)
//   broadcast        at most n ceil(log2 P) from the root; n (P-1) from all ranks together
//   barrier          0 bytes
//
// In addition, each call first sends a record of 48 bytes to every other rank, which says what this
// rank calls. A world of 1 sends nothing. Memory belongs to the function until it returns.
//
// @throws InvalidArgument from every function, as said below, on the rank whose argument is wrong;
// its exception ends the other ranks. Also on every rank, before any data moves, if two ranks call
// different collectives or differ in dtype, count, reduction, root, or in whether their memory is
// the host's: the text names both calls, and the group remains usable. CommError as Communicator
// does.
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

/// Fills part r of `received` with part rank() of the `sent` of rank r. The two must not overlap.
/// @throws InvalidArgument if dtypes, devices or counts differ, or the world does not divide the
/// count.
void all_to_all(Communicator& comm, const Array& sent, const Array& received);

/// Replaces `values` on all ranks by those of `root`, along a binomial tree.
/// @throws InvalidArgument if root is not a rank.
void broadcast(Communicator& comm, const Array& values, int root);
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root);

/// Returns when all ranks have called it.
void barrier(Communicator& comm);

/// The collectives of an engine. They are called with checked arguments, and only when all ranks
/// are known to make the same call. This class implements them by messages between host memory;
/// engines override them.
class Collectives {
 public:
  explicit Collectives(Communicator& comm) : comm_(comm) {}
  virtual ~Collectives() = default;

  virtual void all_reduce(const Array& values, Reduction reduction);
  virtual void reduce_scatter(const Array& all, const Array& mine, Reduction reduction);
  virtual void all_gather(const Array& mine, const Array& all);
  virtual void all_to_all(const Array& sent, const Array& received);
  virtual void broadcast(const Array& values, int root);
  /// Nothing is left to do: the exchange of records before it has waited for all ranks.
  virtual void barrier() {}

 protected:
  Communicator& comm_;
};

}  // namespace armillary::comm
