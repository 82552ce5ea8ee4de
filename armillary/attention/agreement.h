// agreement.h: all ranks are asked for the same attention, or none attends.
//
//   rank r   record --> rank r + 1, r + 2, r + 4, ..      as many rounds as log2 of the world
//            record <-- rank r - 1, r - 2, r - 4, ..      each compared with its own
//
// A rank goes on to a round when its record was that of the round before. So who has ended the last
// one knows that all ranks have the same record, and no tile has moved before.
#pragma once

#include <memory>
#include <optional>

#include "armillary/attention/call_record.h"
#include "armillary/comm/communicator.h"
#include "armillary/runtime/gate.h"

namespace armillary::attention {

/// One comparison, which the tiles of a call wait for. Collective. Cost: log2(world) messages of 1
/// KiB in each direction.
class Agreement : public runtime::Gate {
 public:
  /// Tells the next rank and waits for nobody. @throws CommError as the communicator.
  Agreement(comm::Communicator& comm, const Asked& asked);
  ~Agreement() override;

  /// All ranks are known to be asked for the same.
  /// @throws InvalidArgument, on the rank that sees it, with both values if they are not; CommError
  /// as the communicator.
  bool is_open() override;
  void wait() override;

  /// For a rank that cannot do what it is asked for: looks for so long whether that is because the
  /// rank before was asked for something else. @throws InvalidArgument, with both values, if so.
  void compare_within(double seconds);

 private:
  struct Exchange;
  comm::Communicator& comm_;
  std::optional<double> timeout_s_;
  std::unique_ptr<Exchange> exchange_;  ///< Until it is over.
};

}  // namespace armillary::attention
