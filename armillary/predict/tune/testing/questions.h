// questions.h: questions for tests: small ones, and a grid of 200.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/predict/tune/advise.h"
#include "armillary/predict/tune/candidate.h"

namespace armillary::tune::testing {

/// A question about a preset cluster with bf16 and 128 elements a head.
Question question(const std::string& cluster, int world, const std::string& mask, std::int64_t seq);

/// A question about a mesh for a known model, with a causal mask.
AdviceQuestion advice_question(const std::string& model, const std::string& cluster,
                               std::int64_t seq, std::int64_t batch);

/// 5 masks x 4 head counts x 2 lengths x 5 clusters of 4 to 8 ranks.
std::vector<Question> grid_of_200();

}  // namespace armillary::tune::testing
