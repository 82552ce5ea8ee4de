// collectives_rate.h: measures what started collectives cost, and how much of them compute hides.
//
//   sides: "cores"                    two peaks over one (cores.h)
//          "OPERATION BYTES"          started, and waited for at once
//          "OPERATION BYTES bare"     the same messages, and the sum, without the collective
//          "OPERATION BYTES compute"  compute that takes about as long
//          "OPERATION BYTES beside"   started, then the compute, then waited for
//
//   hidden = (alone + compute - beside) / alone       1: all; 0: none
//
// OPERATION is all_gather or reduce_scatter, of fp32; BYTES are those of one rank's part. All sides
// but the first are seconds of one call by all ranks. Compute uses one core a rank and does not
// look at the collective: what is hidden moves by itself.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/thread_ranks.h"

namespace armillary::bench {

struct CollectivesCase {
  int world = 2;
  std::vector<std::int64_t> bytes = {1024, 65536, 4194304};  ///< Sizes of one rank's part.
  std::string engine = "threads";                            ///< For results; make_ranks decides.
};

/// Counts of what one rank sends in one call: the first rank of this process.
struct CollectiveFacts {
  std::string operation;
  std::int64_t part_bytes = 0;  ///< BYTES above.
  std::int64_t messages = 0;
  std::int64_t bytes = 0;        ///< Values alone.
  std::int64_t label_bytes = 0;  ///< Bytes beside them, which say what is called (comm/label.h).
};

/// A case with its memory. One thread calls.
class CollectivesRate {
 public:
  /// Runs all collectives and checks their results. @throws InvalidArgument for a world below 2, or
  /// bytes that are not those of at least one fp32; Error if a result is wrong.
  explicit CollectivesRate(const CollectivesCase& spec,
                           const MakeRanks& make_ranks = make_thread_ranks);
  ~CollectivesRate();

  const std::vector<CollectiveFacts>& facts() const { return facts_; }
  std::vector<Side> sides();  ///< They must not outlive this object.

 private:
  struct Collective;
  std::unique_ptr<Ranks> ranks_;
  std::list<Collective> collectives_;  ///< In the order of facts().
  std::vector<CollectiveFacts> facts_;
};

}  // namespace armillary::bench
