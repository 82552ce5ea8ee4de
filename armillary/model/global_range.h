// global_range.h: the part of a whole tensor that a rank holds or a file has, as a box of global
// indices. No tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace armillary::model {

using Shape = std::vector<std::int64_t>;

/// Product of the sizes; 1 for a scalar.
std::int64_t count_of_values(const Shape& shape);

/// Indices [begin, begin + size) along each dim. As many begins and sizes as the whole has dims.
struct GlobalRange {
  Shape whole;  ///< Sizes of the whole tensor.
  Shape begin;
  Shape size;

  bool is_whole() const { return size == whole; }
  bool operator==(const GlobalRange&) const = default;
};

GlobalRange whole_of(const Shape& shape);

/// Part `index` of [0, count) in `parts`: [i n / P, (i + 1) n / P). Parts differ by one at most.
struct EvenPart {
  std::int64_t begin;
  std::int64_t size;
};
EvenPart even_part(std::int64_t count, int index, int parts);

/// The indices that two ranges of one whole have in common; a size is 0 if there are none.
GlobalRange overlap_of(const GlobalRange& a, const GlobalRange& b);

/// Calls `see` for each row of the last dim, in order: the row's first element as a row-major index
/// of the whole and of the range, and the row's length.
void for_each_row(
    const GlobalRange& range,
    const std::function<void(std::int64_t global, std::int64_t local, std::int64_t count)>& see);

/// Row-major index within a range of an element that it has, given by its index in the whole.
std::int64_t local_index(const GlobalRange& range, std::int64_t global);

}  // namespace armillary::model
