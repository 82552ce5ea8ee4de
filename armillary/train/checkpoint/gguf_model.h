// gguf_model.h: models in GGUF files (io/gguf.h) as a llama here: the architectures llama, qwen2
// and qwen3. Names of keys and tensors are those of llama.cpp (gguf-py/gguf/constants.py).
#pragma once

#include <span>
#include <string>

#include "armillary/io/gguf.h"
#include "armillary/model/global_range.h"
#include "armillary/model/model_options.h"
#include "armillary/model/parameter.h"

namespace armillary::train {

/// The model of a file. Reading is strict: a key of the architecture is obeyed or known to change
/// no logits. A tensor of frequencies, rope_freqs, is a longrope with one list of divisors.
/// @throws InvalidArgument that names the path and the key.
model::ModelOptions read_gguf_model(const io::GgufFile& file);

/// Name in the file of a parameter: `layers.0.attention.wq.weight` is `blk.0.attn_q.weight`.
std::string gguf_name(const std::string& parameter);

/// As ModelSource::expect_tensors (model_source.h).
void expect_gguf_tensors(const io::GgufFile& file, const model::ModelOptions& model,
                         std::span<const model::Parameter> parameters);

/// Writes the values of a range of a parameter, row by row. Files of the architecture llama have
/// the two halves of each head of Q and K interleaved; here they are apart, as transformers has
/// them. @throws IoError that names file and tensor, if it is missing or has another shape.
void read_gguf_parameter(const io::GgufFile& file, const model::ModelOptions& model,
                         const std::string& parameter, const model::GlobalRange& range,
                         std::span<float> values);

}  // namespace armillary::train
