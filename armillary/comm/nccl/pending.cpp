#include "armillary/comm/nccl/pending.h"

#include "armillary/comm/nccl/lanes.h"

namespace armillary::comm {

NcclPending::~NcclPending() {
  if (!done()) lanes_.withdraw(*this);
}

bool NcclPending::done() const {
  return lanes_.done(lane(), work_);
}

}  // namespace armillary::comm
