// moe_options.h: options of a mixture of experts (moe_layer.h). Names are those of torchtitan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace armillary::model {

/// Scores of a token for all experts.
enum class RouterScore : std::uint8_t {
  Softmax,  ///< Mixtral, Qwen3-MoE.
  Sigmoid,  ///< DeepSeek-V3.
};
/// `softmax`, `sigmoid`, in the order of the enumerators.
const std::vector<std::string>& router_score_names();

/// The tokens over which the balance loss counts those of each expert.
enum class BalanceGroup : std::uint8_t {
  Sequence,  ///< One sequence: the same loss whatever the mesh and the passes of a step.
  Batch,     ///< One pass of all ranks, the whole batch if a step has one pass.
};
/// `sequence`, `batch`.
const std::vector<std::string>& balance_group_names();

struct MoeOptions {
  std::int64_t num_experts = 0;  ///< 0: a plain MLP instead.
  std::int64_t num_shared_experts = 0;
  std::int64_t top_k = 1;          ///< Experts of a token, the shared ones beside them.
  std::int64_t moe_inter_dim = 0;  ///< Width of an expert.
  RouterScore score = RouterScore::Softmax;
  bool route_norm = true;  ///< Weights of a token are divided by their sum.
  double route_scale = 1;  ///< Then they are multiplied by it.
  /// Factor of the balance loss of each layer, X sum_i f_i P_i with the share f of (token, expert)
  /// pairs and the mean score P of each of X experts: 1 if both are even (Fedus et al. 2021,
  /// arXiv:2101.03961, section 2.2; over more than a rank: Qiu et al. 2025, arXiv:2501.11873).
  double router_aux_loss_coef = 0;
  BalanceGroup balance_over = BalanceGroup::Sequence;
  /// Above 0: a bias of each expert, which counts in the choice alone, moves by so much in each
  /// step, down if the expert had more tokens than the mean (Wang et al. 2024, arXiv:2408.15664).
  double load_balance_coeff = 0;
};

}  // namespace armillary::model
