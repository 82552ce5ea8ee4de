#include "armillary/model/tensor_parallel_ops.h"

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace armillary::model {
namespace {

class TensorParallelOps : public LayerOps {
 public:
  using LayerOps::linear;
  using LayerOps::linear_of_norm;

  TensorParallelOps(std::shared_ptr<const LayerOps> columns, std::shared_ptr<const LayerOps> rows,
                    TokenShards shards)
      : columns_(std::move(columns)), rows_(std::move(rows)), shards_(std::move(shards)) {}

  at::Tensor norm(const at::Tensor& x_BKE, const Norm& norm) const override {
    return rows_->norm(x_BKE, norm);
  }

  std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BKE, const Norm& norm,
                                         const std::vector<at::Tensor>& weights,
                                         const EachProduct& each) const override {
    return columns_->linear_of_norm(x_BKE, norm, weights, each);
  }

  std::vector<at::Tensor> linear(const at::Tensor& x_BLF, const std::vector<at::Tensor>& weights,
                                 const EachProduct& each) const override {
    std::vector<at::Tensor> products = rows_->linear(x_BLF, weights, each);
    for (at::Tensor& product : products) product = reduce_scatter_tokens(product, shards_);
    return products;
  }

  at::Tensor linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const override {
    return reduce_scatter_tokens(rows_->linear_of_gelu(x_BLF, weight), shards_);
  }

 private:
  std::shared_ptr<const LayerOps> columns_;
  std::shared_ptr<const LayerOps> rows_;
  TokenShards shards_;
};

}  // namespace

std::shared_ptr<const LayerOps> tensor_parallel_ops(std::shared_ptr<const LayerOps> columns,
                                                    std::shared_ptr<const LayerOps> rows,
                                                    TokenShards shards) {
  return std::make_shared<TensorParallelOps>(std::move(columns), std::move(rows),
                                             std::move(shards));
}

}  // namespace armillary::model
