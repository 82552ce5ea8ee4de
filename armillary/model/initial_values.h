// initial_values.h: initial values of parameters, as a function of (seed, name, global index): a
// shard is born as the slice of the whole, on any mesh and whatever else the model has.
//
//   element i: number i of the parameter's name (named_random.h) --> normal
#pragma once

#include <cstdint>
#include <span>

#include "armillary/model/named_random.h"
#include "armillary/model/parameter.h"

namespace armillary::model {

/// Writes the values of a range of a parameter, row by row. Requires as many values as the range
/// has. Cost: one call of the generator for four values.
void draw_initial_values(const Parameter& parameter, const GlobalRange& range, std::int64_t seed,
                         std::span<float> values);

}  // namespace armillary::model
