#include "armillary/plan/verify/counted.h"

#include <algorithm>
#include <bit>

namespace armillary::plan::verifier {
namespace {

int first_of(std::uint64_t bits, std::size_t word) {
  return static_cast<int>(word * 64) + std::countr_zero(bits);
}

}  // namespace

Bits& Counted::part(int reader, std::size_t words) {
  auto place = std::lower_bound(parts_.begin(), parts_.end(), reader,
                                [](const Part& part, int r) { return part.reader < r; });
  if (place == parts_.end() || place->reader != reader) {
    place = parts_.insert(place, {reader, Bits(words)});
  }
  return place->blocks;
}

int Counted::add(int reader, const Bits& a, const Bits& b) {
  Bits* blocks = nullptr;
  for (std::size_t w = 0; w < a.size(); ++w) {
    const std::uint64_t added = a[w] & b[w];
    if (added == 0) continue;
    if (blocks == nullptr) blocks = &part(reader, a.size());
    if (((*blocks)[w] & added) != 0) return first_of((*blocks)[w] & added, w);
    (*blocks)[w] |= added;
  }
  return -1;
}

bool Counted::add(const Counted& more) {
  return std::all_of(more.parts_.begin(), more.parts_.end(), [this](const Part& part) {
    return add(part.reader, part.blocks, part.blocks) < 0;
  });
}

int Counted::missing(int reader, const Bits& required) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const Part& part) { return part.reader == reader; });
  for (std::size_t w = 0; w < required.size(); ++w) {
    const std::uint64_t counted = found == parts_.end() ? 0 : found->blocks[w];
    if ((required[w] & ~counted) != 0) return first_of(required[w] & ~counted, w);
  }
  return -1;
}

}  // namespace armillary::plan::verifier
