// process_ranks.h: ranks that are processes, of which this is one. The benchmark runs in each of
// them, and the first tells the others what to run:
//
//   rank 0      side.run() --- its index ---> others: follow() ---> the same side
//               (lead)                        the ranks of the side run it, the others sleep
//
// A rank that waits sleeps, so that it does not disturb whatever runs beside it on its core.
#pragma once

#include <span>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/ranks.h"

namespace armillary::bench {

/// The processes of a benchmark. Calls are made from the thread of the rank.
class Processes {
 public:
  /// `comm` holds all processes and must outlive it. Collective.
  explicit Processes(comm::Communicator& comm);
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int rank() const { return comm_.rank(); }

  /// Ranks of all processes, or if `world` is 1, of the process `owner` alone. They must not
  /// outlive this object. start() returns when this process has done its part. @throws
  /// InvalidArgument if `world` is neither 1 nor the number of processes.
  std::unique_ptr<Ranks> make_ranks(int world, int owner);

  /// On rank 0: the sides, of which those that run on all ranks call the others first.
  std::vector<Side> lead(std::vector<Side> sides);
  /// On the others: runs the sides that rank 0 calls, until it says that there are no more.
  /// @throws CommError if rank 0 is silent for the timeout of the group; it may be busy for longer.
  void follow(std::span<const Side> sides);
  /// On rank 0: ends follow().
  void dismiss();

 private:
  class Group;

  /// Sends a value from `root` to all; the others sleep until it comes.
  double tell(double value, int root);

  comm::Communicator& comm_;
  std::unique_ptr<comm::Communicator> alone_;  ///< This process, as a group of one.
};

}  // namespace armillary::bench
