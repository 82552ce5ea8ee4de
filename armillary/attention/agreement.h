// agreement.h: all ranks are asked for the same attention and can do it, or none attends.
//
//   rank r   record, verdict --> rank r + 1, r + 2, r + 4, ..   as many rounds as log2 of the world
//            record, verdict <-- rank r - 1, r - 2, r - 4, ..   the records must be equal
//
// A verdict is the worst that a rank knows: that records differ, or that a rank refuses what it is
// asked for. After the last round all ranks have one, or all know that there is none: no tile has
// moved before.
#pragma once

#include <memory>
#include <optional>

#include "armillary/attention/call_record.h"
#include "armillary/comm/communicator.h"
#include "armillary/proof/verdict.h"
#include "armillary/runtime/gate.h"

namespace armillary::attention {

/// Its lane, the last, above those of plans: ranks go on to a round when they look, before or after
/// a collective of theirs.
inline int agreement_lane(const comm::Communicator& comm) {
  return comm.lanes() - 1;
}

/// One comparison, which the tiles of a call wait for. Collective. Cost: log2(world) messages of
/// 1.5 KiB in each direction.
class Agreement : public runtime::Gate {
 public:
  /// Tells the next rank and waits for nobody. `own`: whether this rank can do what it is asked
  /// for.
  /// @throws CommError as the communicator.
  Agreement(comm::Communicator& comm, const Asked& asked, const proof::Verdict& own = {});
  ~Agreement() override;

  /// All ranks are known to be asked for the same, and to be able to do it.
  /// @throws on all ranks InvalidArgument, with both values, if they are not asked for the same;
  /// else what a rank refuses, as InvalidArgument or PlanError; CommError as the communicator.
  bool is_open() override;
  void wait() override;

  /// Whether it opens within so many seconds. @throws as is_open.
  bool opens_within(double seconds);

 private:
  struct Exchange;
  comm::Communicator& comm_;
  std::optional<double> timeout_s_;
  std::unique_ptr<Exchange> exchange_;  ///< Until it is over.
};

}  // namespace armillary::attention
