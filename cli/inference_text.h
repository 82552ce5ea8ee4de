// inference_text.h: what a prompt costs, for people.
#pragma once

#include <string>

#include "armillary/predict/cost/inference.h"

namespace armillary::cli {

/// Prints both phases, the cache and the longest prompt. `model` names it.
void print_inference(const std::string& model, const cost::Inference& inference,
                     const cost::InferenceCost& cost, const sim::Cluster& cluster);

}  // namespace armillary::cli
