// expert_folder.h: experts in folders of transformers: a matrix of each expert is a tensor there.
//
//   layers.0.moe.experts.w1 [X, F, E]  <-->  [F, E] of each expert:
//     mixtral     model.layers.0.block_sparse_moe.experts.0.w1.weight, ..
//     qwen3_moe   model.layers.0.mlp.experts.0.gate_proj.weight, ..
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/io/safetensors.h"
#include "armillary/model/model_options.h"

namespace armillary::train {

/// Whether a parameter of the model has the matrices of all experts of a layer.
bool has_all_experts(const std::string& parameter);

// Names in a folder whose config has this model_type.

/// The matrix of one expert. Requires has_all_experts().
std::string expert_name(const std::string& parameter, std::int64_t expert,
                        const std::string& model_type);
/// The matrix of a router; empty for any other parameter.
std::string router_name(const std::string& parameter, const std::string& model_type);

/// The matrices of the experts of such a parameter, under their names there. They share its bytes.
std::vector<io::TensorBytes> experts_apart(const io::TensorBytes& parameter,
                                           const std::string& model_type);

/// @throws InvalidArgument unless a `moe` computes what Mixtral or Qwen3-MoE does: a softmax router
/// without scale and bias, whose weights are normed in Mixtral, and no shared experts.
void check_hf_experts(const model::ModelOptions& model);

}  // namespace armillary::train
