// fake_nccl.h: CUDA and NCCL as ranks that are threads see them, without a GPU: the rules of the
// libraries that an engine can break, and delays that show whether it does.
//
//   stream    a queue of copies, events and kernels; one thread runs those of all ranks, in order
//             per stream, late and in random order
//   group     ended at once, and in its stream only when each peer that is new has ended one too
//   kernel    over when all its messages have met their other sides, with equal sizes; nothing is
//             buffered, and sizes that differ never end
//   memory    of the device is the heap's, with an address that only copies and kernels use
//
// A call on a communicator whose last one has not ended, an abort that leaves out a communicator of
// the device, a group or an abort in a group that was left open, and a communicator that is freed
// before its end are broken rules: they are counted, with their text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/nccl/api.h"

namespace armillary::comm {

class FakeGpus;

/// The behaviour of all ranks of a FakeGpus.
struct FakeGpuOptions {
  std::uint64_t seed = 1;
  int most_delay_us = 200;  ///< The longest delay of a piece of work.
  /// This rank's communicators fail by themselves when it has ended so many groups; -1: none.
  int failing_rank = -1;
  int groups_until_failure = 0;
  int failing_sender = -1;      ///< A call of this rank to send fails; -1: of none.
  int sends_until_failure = 0;  ///< Calls of that rank before it.
};

/// The GPUs of all ranks, one each.
class FakeGpus {
 public:
  FakeGpus(int world, const FakeGpuOptions& options);
  ~FakeGpus();

  /// The libraries as one rank calls them, from one thread; it must not outlive this object.
  std::unique_ptr<NcclApi> api(int rank);

  // Counts over all ranks.

  int comms_made() const;
  int comms_alive() const;
  int comms_aborted() const;
  std::int64_t bytes_allocated() const;  ///< And not released.
  std::vector<std::string> broken_rules() const;

 private:
  friend class FakeNccl;
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace armillary::comm
