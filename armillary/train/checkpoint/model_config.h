// model_config.h: config.json of a model folder, and the names of its tensors.
//
//   hf          for transformers: "model_type": "llama", tensors as LlamaForCausalLM names them
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

/// Compares all that decides what the model computes. @throws InvalidArgument, naming `path` and
/// the key, unless the folder has a model like `model`.
void check_config(const std::string& path, const nlohmann::json& config,
                  const model::ModelOptions& model);

/// Name in the folder of a parameter of the model:
/// `layers.0.attention.wq.weight` is `model.layers.0.self_attn.q_proj.weight` in `hf`.
std::string folder_name(const std::string& parameter, FolderFormat format);

}  // namespace armillary::train
