#include "armillary/comm/nccl/pending.h"

#include "armillary/comm/nccl/lanes.h"

namespace armillary::comm {

NcclPending::~NcclPending() {
  if (!is_complete()) lanes_.withdraw(*this);
}

bool NcclPending::is_complete() const {
  return lanes_.is_complete(lane(), work_);
}

}  // namespace armillary::comm
