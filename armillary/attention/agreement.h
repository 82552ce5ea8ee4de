// agreement.h: all ranks of a group are asked for the same attention and can do it, or none begins.
//
//   rank r   record, verdict --> rank r + 1, r + 2, r + 4, ..   in log2(world) exchanges
//            record, verdict <-- rank r - 1, r - 2, r - 4, ..   the records must be equal
//
// A verdict is the gravest finding that a rank knows of: that records differ, or that a rank
// refuses its call. Each rank passes on the verdict of all it has heard, so after the last
// exchange every rank knows that of all ranks, and no tile has moved before.
#pragma once

#include <memory>
#include <optional>

#include "armillary/attention/call_record.h"
#include "armillary/comm/communicator.h"
#include "armillary/proof/verdict.h"
#include "armillary/runtime/gate.h"

namespace armillary::attention {

/// The lane of these messages: the last, above the lanes of plans. Ranks begin the next exchange at
/// different times, before or after a collective of theirs, so they need a lane of their own.
inline int agreement_lane(const comm::Communicator& comm) {
  return comm.lanes() - 1;
}

/// One comparison, the gate that the messages of a call wait for. Collective. Cost: log2(world)
/// messages of 1.5 KiB in each direction. Threads: that of the rank.
class Agreement : public runtime::Gate {
 public:
  /// Sends the request to the next rank and does not wait. `own`: Fine, or why this rank refuses
  /// the request.
  /// @throws CommError as the communicator.
  Agreement(comm::Communicator& comm, const CallRequest& request, const proof::Verdict& own = {});
  ~Agreement() override;

  /// True once all ranks are known to have the same request and to accept it.
  /// @throws on all ranks InvalidArgument, with both values, if the requests differ; else the error
  /// of the rank that refuses, as InvalidArgument or PlanError; CommError as the communicator.
  bool is_open() override;
  void wait() override;

  /// Polls is_open() for at most so many seconds; whether it opened. @throws as is_open.
  bool opens_within(double seconds);

 private:
  struct Exchange;
  comm::Communicator& comm_;
  std::optional<double> timeout_s_;
  std::unique_ptr<Exchange> exchange_;  ///< Null once all ranks agree.
};

}  // namespace armillary::attention
