// collectives.h: what training needs from all ranks at once, built on Communicator alone.
//
// All ranks of the group call the same function with equal sizes, in the same order. Results are
// bitwise the same on all ranks and in every run, whatever the timing. Memory belongs to the
// function until it returns. With n bytes per rank and P ranks, each rank sends (and receives):
//
//   all_reduce_sum   2 n (P-1)/P, up to one element per rank and segment of rounding
//   all_gather       n (P-1), n the bytes of one rank's part
//   broadcast        n ceil(log2 P) from root, at most; n (P-1) in all
//   barrier          0 bytes
//
// Beside that, each call sends one message of 40 bytes to every other rank, ahead of the data: what
// this rank calls. A world of 1 sends nothing.
//
// @throws of all: InvalidArgument as said below, and on every rank, before any data moves, if two
// ranks call another collective or differ in dtype, count or root; it names both calls, and the
// group may go on. CommError as Communicator does.
#pragma once

#include <cstddef>
#include <span>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// Lane of all collectives. Plans leave it free (it is their compute lane), so a collective may be
/// called while messages of a plan are under way.
inline constexpr int kCollectiveLane = 0;

/// Replaces `values` by their sum over all ranks, in place. Each element is
/// ((x_0 + x_1) + x_2) + ... + x_{P-1}, in rank order and rounded to T after each addition.
///
/// Works through segments of 2^20 elements: every rank owns 1/P of a segment, receives that piece
/// from all others, adds, and sends the sum back. Extra memory: one segment. Rounds: 2 per segment.
void all_reduce_sum(Communicator& comm, std::span<float> values);
void all_reduce_sum(Communicator& comm, std::span<double> values);

/// Replaces `bytes` on all ranks by those of `root`, down a binomial tree.
/// @throws InvalidArgument if root is not a rank.
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root);

/// Fills `all` with the `mine` of rank 0, 1, ...; `mine` may be its own place in `all`.
/// @throws InvalidArgument if all.size() != world * mine.size().
void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all);

/// Returns after all ranks have called it.
void barrier(Communicator& comm);

}  // namespace armillary::comm
