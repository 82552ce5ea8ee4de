// collectives.cpp: the op gather_over_ranks, on which loss and unshard stand.
//
//   tensor of this rank   -> [world, ..]: the tensors of all ranks, which have one shape and dtype
//
// It runs on the communicator of attention, not on the process group: a rank that refuses its call
// ends it on all ranks, within the deadlines of the communicator.
#include "armillary/comm/collectives.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstddef>
#include <span>
#include <string>

#include "armillary/core/error.h"
#include "armillary/runtime/or_abort.h"
#include "python/src/errors.h"
#include "python/src/groups.h"

namespace armillary::python {
namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor gather_over_ranks(const at::Tensor& tensor, std::string group, double timeout_s) {
  return with_python_errors([&] {
    at::Tensor all;
    on_group({.name = group, .timeout_s = timeout_s}, [&](comm::Communicator& comm) {
      runtime::or_abort(comm, [&] {
        if (!tensor.device().is_cpu()) {
          fail<InvalidArgument>("gather: a tensor on {}; one on the CPU is required",
                                tensor.device().str());
        }
        const at::Tensor mine = tensor.contiguous();
        std::vector<std::int64_t> sizes{comm.world()};
        sizes.insert(sizes.end(), mine.sizes().begin(), mine.sizes().end());
        all = at::empty(sizes, mine.options());
        comm::all_gather(comm, bytes_of(mine), bytes_of(all));
      });
    });
    return all;
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(armillary, library) {
  library.def("gather_over_ranks(Tensor mine, str group, float timeout_s) -> Tensor");
}

TORCH_LIBRARY_IMPL(armillary, CompositeExplicitAutograd, library) {
  library.impl("gather_over_ranks", &gather_over_ranks);
}

}  // namespace armillary::python
