// named_random.h: random numbers as a function of (seed, name, index): any of them is drawn without
// the others, the same on every rank of any mesh. No tensors.
//
//   (seed, name) --Philox--> key;   number i: word i % 4 of philox(i / 4; key) --> uniform, normal
//
// Only IEEE additions, products, quotients and square roots are used, so that hosts with other
// instruction sets or libraries of mathematics draw the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace armillary::model {

/// The numbers of one name. A value.
class NamedRandom {
 public:
  NamedRandom(std::int64_t seed, std::string_view name);

  /// Number `index`, from 0 on, in (0, 1).
  double uniform(std::int64_t index) const;
  /// Numbers begin, begin + 1, .. as normal variables. Cost: one call of the generator for four.
  void fill_normal(std::int64_t begin, std::span<float> values, double mean = 0,
                   double deviation = 1) const;

 private:
  std::array<std::uint32_t, 2> key_;
};

/// The number below which a normal variable is with chance p, 0 < p < 1, p not below 2^-35.
/// Relative error below 2e-7. Source: Wichura 1988, algorithm AS 241, PPND7.
double normal_quantile(double p);

}  // namespace armillary::model
