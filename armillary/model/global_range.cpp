// global_range.cpp: indices of row-major arrays. The whole array and the range in it have one order
// of dims and different strides; a row, a run of the last dim, is contiguous in both.
#include "armillary/model/global_range.h"

#include <algorithm>

namespace armillary::model {

std::int64_t count_of_values(const Shape& shape) {
  // An array without dims, a scalar, has one value.
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

GlobalRange whole_of(const Shape& shape) {
  return {.whole = shape, .begin = Shape(shape.size()), .size = shape};
}

EvenPart even_part(std::int64_t count, int index, int parts) {
  const std::int64_t begin = index * count / parts;
  return {begin, (index + 1) * count / parts - begin};
}

GlobalRange overlap_of(const GlobalRange& a, const GlobalRange& b) {
  GlobalRange both = a;
  for (std::size_t dim = 0; dim < a.whole.size(); ++dim) {
    const std::int64_t end = std::min(a.begin[dim] + a.size[dim], b.begin[dim] + b.size[dim]);
    both.begin[dim] = std::max(a.begin[dim], b.begin[dim]);
    // Ranges that do not meet would have a negative size.
    both.size[dim] = std::max<std::int64_t>(end - both.begin[dim], 0);
  }
  return both;
}

void for_each_row(
    const GlobalRange& range,
    const std::function<void(std::int64_t global, std::int64_t local, std::int64_t count)>& see) {
  const std::int64_t values = count_of_values(range.size);
  const std::int64_t row = range.size.empty() ? 1 : range.size.back();
  for (std::int64_t local = 0; local < values; local += row) {
    // The indices of the row's first element, from the last dim to the first.
    std::int64_t global = 0;
    std::int64_t stride = 1;
    std::int64_t rest = local;
    for (std::size_t dim = range.size.size(); dim-- > 0;) {
      global += (range.begin[dim] + rest % range.size[dim]) * stride;
      rest /= range.size[dim];
      stride *= range.whole[dim];
    }
    see(global, local, row);
  }
}

std::int64_t local_index(const GlobalRange& range, std::int64_t global) {
  std::int64_t local = 0;
  std::int64_t stride = 1;
  for (std::size_t dim = range.size.size(); dim-- > 0;) {
    local += (global % range.whole[dim] - range.begin[dim]) * stride;
    global /= range.whole[dim];
    stride *= range.size[dim];
  }
  return local;
}

}  // namespace armillary::model
