#include "armillary/model/moe.h"

#include <algorithm>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/section.h"
#include "armillary/model/llama.h"

namespace armillary::model {
namespace {

/// The place of a name in a list that has it.
template <class Enum>
Enum enumerator(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<Enum>(std::ranges::find(names, name) - names.begin());
}

}  // namespace

DecoderOptions moe_options(const ModelOptions& model) {
  const DecoderOptions dense = llama_options(model);
  const MoeOptions moe{
      .num_experts = model.num_experts,
      .num_shared_experts = model.num_shared_experts,
      .top_k = model.top_k,
      .moe_inter_dim = model.moe_inter_dim == 0 ? dense.hidden_dim() : model.moe_inter_dim,
      .score = enumerator<RouterScore>(router_score_names(), model.score_func),
      .route_norm = model.route_norm,
      .route_scale = model.route_scale,
      .router_aux_loss_coef = model.router_aux_loss_coef,
      .balance_over = enumerator<BalanceGroup>(balance_group_names(), model.balance_over),
      .load_balance_coeff = model.load_balance_coeff};
  return DecoderOptions(dense).moe(moe);
}

void check_moe(const ModelOptions& model) {
  if (model.top_k > model.num_experts) {
    fail<InvalidArgument>(
        "recipe: model.top_k {} with model.num_experts {}; at most as many as there are experts "
        "are required; nearest: top_k {}",
        model.top_k, model.num_experts, model.num_experts);
  }
  // The width of all shared experts is that of one MLP.
  const std::int64_t width = moe_options(model).moe().moe_inter_dim;
  if (model.num_shared_experts > kMaxSize / width) {
    fail<InvalidArgument>(
        "recipe: model.num_shared_experts {} of width {}; a product of at most {} is required; "
        "nearest: num_shared_experts {}",
        model.num_shared_experts, width, kMaxSize, kMaxSize / width);
  }
}

}  // namespace armillary::model
