// collectives.h: what training needs from all ranks at once. An engine may have its own (MPI,
// NCCL); the default is built on messages alone.
//
// All ranks of the group call the same function with equal counts, in the same order. By messages,
// results are bitwise the same on all ranks and in every run, whatever the timing, and each rank
// sends (and receives), with n bytes per rank and P ranks:
//
//   all_reduce       2 n (P-1)/P, up to one element per rank and segment of rounding
//   reduce_scatter   n (P-1), n the bytes of one rank's part
//   all_gather       n (P-1), n the bytes of one rank's part
//   all_to_all       n (P-1), n the bytes of one rank's part
//   broadcast        n ceil(log2 P) from root, at most; n (P-1) in all
//   barrier          0 bytes
//
// Beside that, each call sends one message of 40 bytes to every other rank, ahead of the data: what
// this rank calls. A world of 1 sends nothing. Memory belongs to the function until it returns.
//
// @throws of all: InvalidArgument as said below, on the rank that is given it, whose exception ends
// the others; and on every rank, before any data moves, if two ranks call another collective or
// differ in dtype, count, reduction or root: it names both calls, and the group may go on.
// CommError as Communicator does.
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
/// Addends come in rank order. Works through segments of 2^20 elements, each in two rounds: every
/// rank receives 1/P of it from all others, reduces, and sends the result back. Extra memory: one
/// segment. @throws InvalidArgument if the dtype is Byte.
void all_reduce(Communicator& comm, const Array& values, Reduction reduction = Reduction::Sum);
void all_reduce_sum(Communicator& comm, std::span<float> values);
void all_reduce_sum(Communicator& comm, std::span<double> values);

/// Fills `mine` with the sum or largest of part rank() of all ranks' `all`. `mine` may be its own
/// place in `all`, which else stays as it is. As all_reduce in rounding and extra memory.
/// @throws InvalidArgument if dtypes differ or are Byte, or all.count != world * mine.count.
void reduce_scatter(Communicator& comm, const Array& all, const Array& mine,
                    Reduction reduction = Reduction::Sum);

/// Fills `all` with the `mine` of rank 0, 1, ...; `mine` may be its own place in `all`.
/// @throws InvalidArgument if dtypes differ, or all.count != world * mine.count.
void all_gather(Communicator& comm, const Array& mine, const Array& all);
void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all);

/// Fills part r of `received` with part rank() of what rank r has in `sent`. They do not overlap.
/// @throws InvalidArgument if dtypes or counts differ, or the world does not divide the count.
void all_to_all(Communicator& comm, const Array& sent, const Array& received);

/// Replaces `values` on all ranks by those of `root`, down a binomial tree.
/// @throws InvalidArgument if root is not a rank.
void broadcast(Communicator& comm, const Array& values, int root);
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root);

/// Returns after all ranks have called it.
void barrier(Communicator& comm);

/// How an engine does them; arguments are checked, and all ranks are known to make the same call.
/// The default: by messages between host memory.
class Collectives {
 public:
  explicit Collectives(Communicator& comm) : comm_(comm) {}
  virtual ~Collectives() = default;

  virtual void all_reduce(const Array& values, Reduction reduction);
  virtual void reduce_scatter(const Array& all, const Array& mine, Reduction reduction);
  virtual void all_gather(const Array& mine, const Array& all);
  virtual void all_to_all(const Array& sent, const Array& received);
  virtual void broadcast(const Array& values, int root);
  virtual void barrier() {}  ///< That all have made the call is known.

 protected:
  Communicator& comm_;
};

}  // namespace armillary::comm
