#include "armillary/train/tensor_parallel_over_ranks.h"

#include <ATen/core/Tensor.h>

#include "armillary/comm/collectives.h"
#include "armillary/train/tensor_array.h"

namespace armillary::train {
namespace {

class TensorParallelOverRanks : public model::TensorParallel {
 public:
  explicit TensorParallelOverRanks(comm::Communicator& tp)
      : TensorParallel(tp.rank(), tp.world()), tp_(tp) {}

  void all_gather(const at::Tensor& mine, const at::Tensor& all,
                  std::span<const std::int64_t> counts) override {
    tp_.wait(comm::start_all_gather(tp_, array_of(mine), array_of(all), counts));
  }

  // Sums of bf16 are fp32 until the last addend (comm/reduce.h).
  void reduce_scatter(const at::Tensor& all, const at::Tensor& mine,
                      std::span<const std::int64_t> counts) override {
    tp_.wait(comm::start_reduce_scatter(tp_, array_of(all), array_of(mine), comm::Reduction::Sum,
                                        counts));
  }

  void all_reduce_sum(const at::Tensor& values) override {
    comm::all_reduce(tp_, array_of(values), comm::Reduction::Sum);
  }

  void all_reduce_max(const at::Tensor& values) override {
    comm::all_reduce(tp_, array_of(values), comm::Reduction::Max);
  }

 private:
  comm::Communicator& tp_;
};

}  // namespace

std::shared_ptr<model::TensorParallel> tensor_parallel_over_ranks(comm::Communicator& tp) {
  return std::make_shared<TensorParallelOverRanks>(tp);
}

}  // namespace armillary::train
