// model_config.h: config.json of a model folder, and the names of its tensors.
//
//   hf          for transformers: hf_config.h, tensors as LlamaForCausalLM names them, those of
//               experts as expert_folder.h does
//   armillary   for every model of this program: the keys of [model], tensors as the model names
//               them
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "armillary/model/model_options.h"

namespace armillary::train {

enum class FolderFormat : std::uint8_t { Hf, Armillary };

/// "hf" or "armillary". @throws InvalidArgument with the nearest for any other name.
FolderFormat parse_folder_format(const std::string& name);

/// The whole of config.json. `seq_len`: tokens of the sequences with which it was trained; `dtype`:
/// that of the parameters, "float32" or "float64".
/// @throws InvalidArgument if transformers has no such model, as for GPT.
nlohmann::json model_config(const model::ModelOptions& model, std::int64_t seq_len,
                            FolderFormat format, const std::string& dtype = "float32");

/// The format of a folder with this config.json.
FolderFormat format_of(const nlohmann::json& config);

/// The model of a folder. @throws InvalidArgument that names `path` and the key, if config.json is
/// of no model here.
model::ModelOptions read_model_config(const std::string& path, const nlohmann::json& config);

/// The model, if it is legal. @throws InvalidArgument that names `path`.
model::ModelOptions checked_model(const std::string& path, model::ModelOptions model);

/// Compares all that decides what a model computes. @throws InvalidArgument, naming `path` and the
/// key, unless the model that is there is the one of the recipe.
void check_same_model(const std::string& path, const model::ModelOptions& there,
                      const model::ModelOptions& recipe);

/// Name in the folder of a parameter of the model:
/// `layers.0.attention.wq.weight` is `model.layers.0.self_attn.q_proj.weight` in `hf`. Not of one
/// with all experts (expert_folder.h) in `hf`. `model_type` is that of config.json, "armillary" in
/// `armillary`.
std::string folder_name(const std::string& parameter, const std::string& model_type);

}  // namespace armillary::train
