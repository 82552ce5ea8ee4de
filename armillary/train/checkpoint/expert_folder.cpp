#include "armillary/train/checkpoint/expert_folder.h"

#include <fmt/format.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

constexpr std::string_view kOurExperts = ".moe.experts.";
constexpr std::string_view kOurRouter = ".moe.router.gate.";

bool is_mixtral(const std::string& model_type) {
  return model_type == "mixtral";
}

/// The part of a layer that has router and experts.
std::string_view block_of(const std::string& model_type) {
  return is_mixtral(model_type) ? "block_sparse_moe" : "mlp";
}

/// Our w1, w2 or w3 as it is named there.
std::string matrix_name(const std::string& ours, const std::string& model_type) {
  if (is_mixtral(model_type)) return ours;
  return ours == "w1" ? "gate_proj" : ours == "w2" ? "down_proj" : "up_proj";
}

}  // namespace

bool has_all_experts(const std::string& parameter) {
  return parameter.find(kOurExperts) != std::string::npos;
}

std::string expert_name(const std::string& parameter, std::int64_t expert,
                        const std::string& model_type) {
  const std::size_t at = parameter.find(kOurExperts);
  ARMILLARY_CHECK(at != std::string::npos);
  return fmt::format("model.{}.{}.experts.{}.{}.weight", parameter.substr(0, at),
                     block_of(model_type), expert,
                     matrix_name(parameter.substr(at + kOurExperts.size()), model_type));
}

std::string router_name(const std::string& parameter, const std::string& model_type) {
  const std::size_t at = parameter.find(kOurRouter);
  if (at == std::string::npos) return "";
  return fmt::format("model.{}.{}.gate.{}", parameter.substr(0, at), block_of(model_type),
                     parameter.substr(at + kOurRouter.size()));
}

std::vector<io::TensorBytes> experts_apart(const io::TensorBytes& parameter,
                                           const std::string& model_type) {
  const std::int64_t experts = parameter.info.shape.at(0);
  const std::size_t bytes = parameter.bytes.size() / static_cast<std::size_t>(experts);
  std::vector<io::TensorBytes> apart;
  for (std::int64_t i = 0; i < experts; ++i) {
    io::TensorBytes one = parameter;
    one.info.name = expert_name(parameter.info.name, i, model_type);
    one.info.shape.erase(one.info.shape.begin());
    one.bytes = parameter.bytes.subspan(static_cast<std::size_t>(i) * bytes, bytes);
    apart.push_back(std::move(one));
  }
  return apart;
}

void check_hf_experts(const model::ModelOptions& model) {
  std::string difference;
  if (model.score_func != "softmax") difference = "model.score_func " + model.score_func;
  if (!model.route_norm && !model.qk_norm) difference = "model.route_norm false without qk_norm";
  if (model.route_scale != 1) difference = fmt::format("model.route_scale {}", model.route_scale);
  if (model.num_shared_experts > 0) {
    difference = fmt::format("model.num_shared_experts {}", model.num_shared_experts);
  }
  if (model.load_balance_coeff > 0) {
    difference = fmt::format("model.load_balance_coeff {}", model.load_balance_coeff);
  }
  if (model.qkv_bias) difference = "model.qkv_bias true";
  if (difference.empty()) return;
  fail<InvalidArgument>(
      "export: {} in format hf; a softmax router whose weights are normed, and neither a scale, a "
      "bias nor shared experts, as in Mixtral and, with qk_norm, Qwen3-MoE, are required; nearest: "
      "--format armillary",
      difference);
}

}  // namespace armillary::train
