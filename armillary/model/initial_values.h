// initial_values.h: initial values of parameters, as a function of (seed, name, global index): a
// shard is born as the slice of the whole, on any mesh and whatever else the model has.
//
//   (seed, name) --Philox--> key;   element i: word i % 4 of philox(i / 4; key) --> normal
//
// Only IEEE additions, products, quotients and square roots are used, so that hosts with other
// instruction sets or libraries of mathematics draw the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "armillary/model/parameter.h"

namespace armillary::model {

/// Writes the values of a range of a parameter, row by row. Requires as many values as the range
/// has. Cost: one call of the generator for four values.
void draw_initial_values(const Parameter& parameter, const GlobalRange& range, std::int64_t seed,
                         std::span<float> values);

/// The number below which a normal variable is with chance p, 0 < p < 1, p not below 2^-35.
/// Relative error below 2e-7. Source: Wichura 1988, algorithm AS 241, PPND7.
double normal_quantile(double p);

}  // namespace armillary::model
