// api.cpp: NCCL in builds without its headers, in the place of nccl_library/: there is none,
// and the error says how to get a build that has it.
#include "armillary/comm/nccl/api.h"

#include "armillary/comm/nccl.h"
#include "armillary/core/error.h"

namespace armillary::comm {

std::string nccl_missing() {
  return "nccl: this build has no NCCL; one that found the headers of CUDA and NCCL is required "
         "(./dev setup nccl)";
}

std::unique_ptr<NcclApi> load_nccl() {
  throw InvalidArgument(nccl_missing());
}

}  // namespace armillary::comm
