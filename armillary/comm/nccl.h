// nccl.h: ranks whose memory lies on GPUs, and whose messages are NCCL's.
//
//   run_mpi_rank([&](Communicator& host) { run_on_nccl(host, body); });      ranks of MPI
//   run_c10d_rank([&](Communicator& host) { run_on_nccl(host, body); }, ..)  ranks of Gloo
//
// NCCL moves bytes between GPUs and nothing else, so this engine stands on another one, its host
// group: the ids of NCCL's communicators travel there, and so do messages of host memory, failures
// and aborts, beside the data. A message with bytes in host memory is the host group's; its receive
// has to be in host memory too. All others are NCCL's.
//
// A lane is an NCCL communicator and a stream. A batch is one NCCL group on each of its lanes; it
// ends when all of its messages do, and the batches of a lane end strictly in order. So two pairs
// of ranks are not independent on one lane: a rank that receives from A and then sends to B, in two
// batches of one lane, sends when A's message has come. `verify` proves plans under these rules.
//
// NCCL compares no sizes: a send and its receive that differ in bytes end by the deadline, or move
// the wrong bytes. Neither is noticed here. The plan is proved to have equal sizes, and collectives
// compare theirs before data moves.
//
// The libraries are loaded when they are asked for, so one program runs with and without a GPU. A
// build without the headers of CUDA and NCCL has the same header; nccl_missing() tells.
#pragma once

#include <functional>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// All ranks of a group have the same options, except the device.
struct NcclOptions {
  int lanes = 8;
  /// The GPU of this rank; -1 for the rank in the host group modulo the GPUs that are visible.
  int device = -1;
  /// Most thread blocks of a lane's kernel. Two ranks may start the kernels of their lanes in
  /// different orders, and each spins until its peer's runs, so the kernels of all lanes have to
  /// fit on a GPU at once.
  int blocks_per_lane = 8;
};

/// The reason why this process cannot use NCCL, such as "no CUDA device"; empty if it can. It loads
/// the libraries and initialises CUDA, so a process that forks later cannot use a GPU.
std::string nccl_missing();

/// Runs `body` on a group of the same ranks as `host`, whose memory may lie on their GPUs.
/// Collective over `host`; returns when all ranks have ended their body. Failures of the two groups
/// are one. Its timeout at the begin is that of `host`. Deadlines of device memory count from the
/// last progress of the peer too, which the ranks of `host` tell each other.
///
/// A rank that fails ends NCCL's kernels (ncclCommAbort) before it throws, so no memory is touched
/// afterwards. This function throws when NCCL has freed its communicators too, which takes up to a
/// second more. A rank that waits inside CUDA for all streams of its device is not woken by the
/// failure of another one.
///
/// @throws InvalidArgument if an option is out of range or differs between ranks; on every rank if
///   one of them has no NCCL, with its reason.
/// @throws CommError as Communicator does, and if NCCL fails.
void run_on_nccl(Communicator& host, const std::function<void(Communicator&)>& body,
                 const NcclOptions& options = {});

}  // namespace armillary::comm
