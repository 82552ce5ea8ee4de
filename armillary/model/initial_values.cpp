// initial_values.cpp: elements are drawn along rows of the last dim, whose global indices follow
// one another.
#include "armillary/model/initial_values.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::model {

void draw_initial_values(const Parameter& parameter, const GlobalRange& range, std::int64_t seed,
                         std::span<float> values) {
  ARMILLARY_CHECK(static_cast<std::int64_t>(values.size()) == count_of_values(range.size));
  const Init& init = parameter.init;
  if (init.deviation == 0) {
    std::ranges::fill(values, static_cast<float>(init.mean));
    return;
  }
  const NamedRandom numbers(seed, parameter.name);
  for_each_row(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
    numbers.fill_normal(
        global, values.subspan(static_cast<std::size_t>(local), static_cast<std::size_t>(count)),
        init.mean, init.deviation);
  });
}

}  // namespace armillary::model
