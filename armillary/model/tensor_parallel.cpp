// tensor_parallel.cpp: tokens of several ranks in one tensor. A message has the tokens of rank 0
// first; a batch of one lies so already, and nothing is copied.
#include "armillary/model/tensor_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/global_range.h"
#include "armillary/model/narrow_parameters.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

EvenPart part_of_rank(const TokenShards& shards, int rank) {
  return even_part(shards.tokens, rank, shards.ranks->ranks());
}

/// Elements of each rank's tokens, with so many elements a token of all batch entries.
std::vector<std::int64_t> counts_by_rank(const TokenShards& shards, std::int64_t width) {
  std::vector<std::int64_t> counts;
  counts.reserve(shards.ranks->ranks());
  for (int rank = 0; rank < shards.ranks->ranks(); ++rank) {
    counts.push_back(part_of_rank(shards, rank).size * width);
  }
  return counts;
}

/// The ranks as autograd keeps them until backward.
struct SavedShards : torch::CustomClassHolder {
  explicit SavedShards(const TokenShards& shards) : shards(shards) {}
  TokenShards shards;
};

void save_shards(AutogradContext* ctx, const TokenShards& shards) {
  ctx->saved_data["shards"] = c10::IValue::make_capsule(c10::make_intrusive<SavedShards>(shards));
}

TokenShards saved_shards(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedShards>(ctx->saved_data["shards"].toCapsule())
      ->shards;
}

class GatherTokens : public torch::autograd::Function<GatherTokens> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_BKE,
                            const TokenShards& shards) {
    save_shards(ctx, shards);
    return gathered(x_BKE, shards);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {reduce_scattered(grads[0], saved_shards(ctx)), Variable()};
  }
};

class ReduceScatterTokens : public torch::autograd::Function<ReduceScatterTokens> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& partial_BLE,
                            const TokenShards& shards) {
    save_shards(ctx, shards);
    return reduce_scattered(partial_BLE, shards);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {gathered(grads[0], saved_shards(ctx)), Variable()};
  }
};

}  // namespace

at::Tensor tokens_of_rank(const at::Tensor& x, std::int64_t dim, const TokenShards& shards) {
  if (!shards) return x;
  const EvenPart tokens = part_of_rank(shards, shards.ranks->index());
  return x.narrow(dim, tokens.begin, tokens.size);
}

at::Tensor gathered(const at::Tensor& x_BKE, const TokenShards& shards) {
  const std::int64_t batch = x_BKE.size(0);
  const std::int64_t dim = x_BKE.size(2);
  ARMILLARY_CHECK(x_BKE.size(1) == part_of_rank(shards, shards.ranks->index()).size);
  at::Tensor all = at::empty({batch * shards.tokens * dim}, x_BKE.options());
  const std::vector<std::int64_t> counts = counts_by_rank(shards, batch * dim);
  shards.ranks->all_gather(x_BKE.contiguous(), all, counts);
  if (batch == 1) return all.view({1, shards.tokens, dim});
  // Each rank's tokens of all batch entries lie together.
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < shards.ranks->ranks(); ++rank) {
    const EvenPart tokens = part_of_rank(shards, rank);
    parts.push_back(
        all.narrow(0, tokens.begin * batch * dim, counts[static_cast<std::size_t>(rank)])
            .view({batch, tokens.size, dim}));
  }
  return at::cat(parts, 1);
}

at::Tensor reduce_scattered(const at::Tensor& partial_BLE, const TokenShards& shards) {
  const std::int64_t batch = partial_BLE.size(0);
  const std::int64_t dim = partial_BLE.size(2);
  ARMILLARY_CHECK(partial_BLE.size(1) == shards.tokens);
  at::Tensor all = partial_BLE.contiguous();
  if (batch != 1) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < shards.ranks->ranks(); ++rank) {
      const EvenPart tokens = part_of_rank(shards, rank);
      parts.push_back(all.narrow(1, tokens.begin, tokens.size).flatten());
    }
    all = at::cat(parts, 0);
  }
  const std::int64_t mine = part_of_rank(shards, shards.ranks->index()).size;
  at::Tensor sum_BKE = at::empty({batch, mine, dim}, partial_BLE.options());
  shards.ranks->reduce_scatter(all, sum_BKE, counts_by_rank(shards, batch * dim));
  return sum_BKE;
}

at::Tensor gather_tokens(const at::Tensor& x_BKE, const TokenShards& shards) {
  return GatherTokens::apply(x_BKE, shards);
}

at::Tensor reduce_scatter_tokens(const at::Tensor& partial_BLE, const TokenShards& shards) {
  return ReduceScatterTokens::apply(partial_BLE, shards);
}

at::Tensor embedding_of_words(const at::Tensor& weight_VE, std::int64_t first_word,
                              const at::Tensor& tokens_BL) {
  const at::Tensor row_BL = tokens_BL - first_word;
  const at::Tensor elsewhere_BL = row_BL.lt(0).logical_or(row_BL.ge(weight_VE.size(0)));
  return rows_of_table(weight_VE, row_BL.masked_fill(elsewhere_BL, 0))
      .masked_fill(elsewhere_BL.unsqueeze(2), 0);
}

}  // namespace armillary::model
