// mpi.h: ranks as processes that mpirun or srun started, on one machine or many.
//
//   mpirun -n 4 program        each process calls run_mpi_rank(body): rank 0 .. 3 of one group
//
// Messages are MPI-3 nonblocking calls. A lane is a duplicated communicator, so lanes are
// independent, and so are groups made by split(), which have tags of their own on these lanes. The
// receiver looks at a message before it takes it (MPI_Improbe), so it knows how many bytes the
// sender has, and MPI never knows memory that no message has come for yet.
//
// A failure travels on a communicator of its own. Each rank has a helper thread that looks there,
// and makes progress on messages, also while the rank computes.
//
// A build without MPI has the same header; mpi_available() tells the two apart.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// All processes of a group have the same options.
struct MpiOptions {
  double timeout_s = 60;  ///< Timeout of every wait, until set_timeout().
  int lanes = 8;
  /// Processes that take part: the first so many of all, or all if 0.
  int world = 0;
  /// Seconds between two looks of the helper thread, in (0, 0.5]; at least 0.01 after a while in
  /// which no message was under way. MPI moves messages only while it is called, so this is how
  /// they move while ranks compute. A look takes a few microseconds.
  double helper_interval_s = 0.001;
  /// Most bytes of one MPI message, in [1, 2^30]: longer messages travel in at most 1024 pieces, or
  /// in as many pieces that are 1024 times as large, up to 2^30 bytes. Open MPI's tcp sends pieces
  /// of up to 1 MiB without asking the receiver first (armillary/comm/mpi/README.md).
  std::int64_t piece_bytes = std::int64_t{1} << 20;
};

/// Whether this build has MPI.
bool mpi_available();

/// The library of this build as it names itself, such as "Open MPI v4.1.4"; empty without one. MPI
/// is not initialised by it.
std::string mpi_version();

/// Runs `body` as one rank of a group of processes and returns when all of them have ended it. All
/// processes of MPI's world call it, and a process that does not take part returns at once. MPI is
/// initialised by the first call, unless it is already; then MPI_THREAD_SERIALIZED is required. It
/// is finalized when the process exits.
///
/// (1) If a rank throws, its process throws the same exception again. The other ranks leave their
/// calls within a second, and their processes throw CommError with its text (of the first 1000
/// bytes). (2) If the group failed and a body swallowed its error, a CommError is thrown on every
/// rank. (3) Two ranks that fail at the same time each know their own reason first; the other ranks
/// throw the one that reaches them first.
///
/// A rank that fails lets messages under way end before it throws, as its memory is theirs. If a
/// peer does not answer for 0.5 s (0.1 s if it is known to be gone or silent), MPI is never called
/// again by this process, nor finalized; it can only exit, and does so without waiting for a peer.
/// A process that fails has to exit with a code that is not 0: mpirun then ends the others. It also
/// does so if one is killed or exits early.
///
/// @throws InvalidArgument if an option is out of range or differs between ranks, if fewer than
///   `world` processes are there, and in a build without MPI.
/// @throws CommError also if a process does not come within timeout_s.
void run_mpi_rank(const std::function<void(Communicator&)>& body, const MpiOptions& options = {});

}  // namespace armillary::comm
