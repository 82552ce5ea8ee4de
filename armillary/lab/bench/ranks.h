// ranks.h: groups of ranks that stay from one run to the next, as the ranks of a trainer stay from
// step to step. Memory, plans and proofs that a rank keeps are therefore warm when it is timed.
//
//   ThreadRanks    (thread_ranks.h)    ranks are threads of this process
//   ProcessRanks   (process_ranks.h)   each rank is a process, and this is one of them
#pragma once

#include <functional>
#include <memory>

#include "armillary/comm/communicator.h"

namespace armillary::bench {

/// How often a work is done in one run.
struct Repeats {
  int untimed = 0;  ///< First, before the clock starts.
  int timed = 1;    ///< At least 1.
};

/// Repeats of a work that takes `seconds`: one untimed, then enough for `least_s`, at most 1000. 2
/// ms are long enough to hide clocks and barriers, and short enough for many runs between two
/// switches of threads by the system. A work of a quarter of a second and more is done once, and
/// timed. repeats_for(0.001) is {1, 2}.
Repeats repeats_for(double seconds, double least_s = 0.002);

/// A group of ranks with one computing thread each. One thread calls; if ranks are processes, all
/// of them make the same calls in the same order.
class Ranks {
 public:
  /// A work is called on every rank at the same time, with the communicator of the rank. Several
  /// ranks call the same object.
  using Work = std::function<void(comm::Communicator&)>;

  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  /// Ends the ranks. Waits for a work that was started.
  virtual ~Ranks() = default;

  /// Starts `work` on every rank. Requires that earlier work was waited for.
  virtual void start(Work work, Repeats repeats) = 0;

  /// Waits for the work that was started. Returns the seconds from the begin of the first timed
  /// work, when all ranks were ready, to the end of the last, over the number of timed repeats.
  /// @throws the exception of a rank; the group is of no use then.
  virtual double wait() = 0;

  /// start() and wait() together.
  double run(Work work, Repeats repeats = {}) {
    start(std::move(work), repeats);
    return wait();
  }

  /// Whether this process runs that rank of the group.
  virtual bool runs(int rank) const = 0;
};

/// Makes a group of `world` ranks. If ranks are processes, a group of one is that of the process
/// with number `owner`, and the others only wait for it.
using MakeRanks = std::function<std::unique_ptr<Ranks>(int world, int owner)>;

}  // namespace armillary::bench
