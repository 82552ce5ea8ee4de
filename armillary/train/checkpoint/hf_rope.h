// hf_rope.h: rotary positions in config.json of transformers (hf_config.h). Version 5 has an object
// rope_parameters, older ones rope_scaling and rope_theta.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "armillary/model/rope_scaling.h"

namespace armillary::train {

struct HfRope {
  double theta = 10000;
  model::RopeScaling scaling = {};
};

/// The values of a config, each null if it is not there.
struct HfRopeKeys {
  const nlohmann::json& scaling;     ///< rope_scaling
  const nlohmann::json& parameters;  ///< rope_parameters
  const nlohmann::json& theta;       ///< rope_theta
  const nlohmann::json& original;    ///< original_max_position_embeddings
  std::int64_t positions;            ///< max_position_embeddings
};

/// @throws InvalidArgument that names `path` and the key: a kind that is not known, a key that is
/// not obeyed, keys that contradict each other.
HfRope read_hf_rope(const std::string& path, const HfRopeKeys& keys);

/// Writes them for all versions, and max_position_embeddings.
void add_hf_rope(nlohmann::json& config, const HfRope& rope, std::int64_t seq_len);

}  // namespace armillary::train
