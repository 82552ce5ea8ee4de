// hf_config.h: config.json of transformers: Llama 2 and 3, SmolLM2, Mistral, Qwen2 and Qwen3, as
// the keys of [model] of a llama (model/llama.h), Mixtral and Qwen3-MoE as those of a moe.
//
//   config.json --read_hf_config--> ModelOptions --hf_config--> config.json
//
// Reading is strict. A key is obeyed, or known to change no logits, or refused by its name: one
// that is not understood may be what makes the model another one.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "armillary/model/model_options.h"

namespace armillary::train {

/// The model of a config, also of older versions, which leave out other defaults. Errors name
/// `path` and the key. @throws InvalidArgument.
model::ModelOptions read_hf_config(const std::string& path, const nlohmann::json& config);

/// The key of a config that says a size of [model]: `dim` is hidden_size.
std::string hf_size_key(std::string_view key, const nlohmann::json& config);

/// The config of a model, for versions 4 and 5 of transformers. `seq_len`: tokens of the sequences
/// with which it was trained; `dtype`: that of the parameters. @throws InvalidArgument if
/// transformers has no such model, as for GPT.
nlohmann::json hf_config(const model::ModelOptions& model, std::int64_t seq_len,
                         const std::string& dtype = "float32");

}  // namespace armillary::train
