// size_keys.h: the keys of a model that decide the shape of a parameter, for errors about tensors.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/model/model_options.h"
#include "armillary/model/parameter.h"

namespace armillary::train {

/// For each dim of a parameter the keys of [model] that decide its size: those of
/// `layers.0.feed_forward.w1.weight` are hidden_dim, then dim. Empty if they are not known.
std::vector<std::vector<std::string_view>> size_keys(const model::ModelOptions& model,
                                                     const std::string& parameter);

/// The keys of the dims in which a shape is not the required one, by the names that a file has for
/// them: ` (llama.feed_forward_length)`. Empty if they are not known.
std::string differing_keys(const model::Shape& shape, const model::Shape& required,
                           const std::vector<std::vector<std::string_view>>& keys,
                           const std::function<std::string(std::string_view key)>& name_in_file);

}  // namespace armillary::train
