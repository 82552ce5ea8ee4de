// run.h: run_on_nccl() with libraries of the caller's choice. Internal to nccl.h, and for tests.
#pragma once

#include "armillary/comm/nccl.h"
#include "armillary/comm/nccl/api.h"

namespace armillary::comm {

/// See nccl.h. `missing` is the reason why this rank has no libraries, and `api` is then null.
void run_on_nccl(NcclApi* api, const std::string& missing, Communicator& host,
                 const std::function<void(Communicator&)>& body, NcclOptions options);

}  // namespace armillary::comm
