#include "armillary/comm/nccl.h"
#include "armillary/comm/nccl/api.h"
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
