// cover.cpp: shards that are disjoint and have as many elements as the whole have each of them
// once. A count alone would take a shard that stands twice for one that is missing.
#include "armillary/train/checkpoint/cover.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::train {
namespace {

/// "elements [4, 0] to [6, 3]", the second without.
std::string told(const model::GlobalRange& range) {
  std::vector<std::int64_t> end = range.begin;
  for (std::size_t dim = 0; dim < end.size(); ++dim) end[dim] += range.size[dim];
  return fmt::format("elements [{}] to [{}]", fmt::join(range.begin, ", "), fmt::join(end, ", "));
}

std::string type_of(const ManifestTensor& shard) {
  return fmt::format("{} [{}]", to_string(shard.info.dtype), fmt::join(shard.range.whole, ","));
}

void check_pair(const std::string& path, const ManifestTensor& a, const ManifestTensor& b) {
  const model::GlobalRange both = model::overlap_of(a.range, b.range);
  if (model::count_of_values(both.size) == 0) return;
  fail<IoError>("checkpoint: {}: {} of tensor '{}' are in {} and in {}{}; each once is required",
                excerpt(path), told(both), a.info.name, excerpt(a.file), excerpt(b.file),
                a.range == b.range ? ", the same shard" : "");
}

}  // namespace

void check_cover(const std::string& path, std::vector<const ManifestTensor*> shards) {
  const ManifestTensor& first = *shards.front();
  std::int64_t count = 0;
  for (const ManifestTensor* shard : shards) {
    if (type_of(*shard) != type_of(first)) {
      fail<IoError>("checkpoint: {}: tensor '{}' is {} in {} and {} in {}; one of them is required",
                    excerpt(path), first.info.name, type_of(first), excerpt(first.file),
                    type_of(*shard), excerpt(shard->file));
    }
    count += model::count_of_values(shard->range.size);
  }
  // A tensor without dims has no first one: its shards are all equal.
  std::ranges::sort(shards, {}, [](const ManifestTensor* shard) { return shard->range.begin; });
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const model::GlobalRange& of = shards[i]->range;
    for (std::size_t j = i + 1; j < shards.size(); ++j) {
      if (!of.begin.empty() && shards[j]->range.begin[0] >= of.begin[0] + of.size[0]) break;
      check_pair(path, *shards[i], *shards[j]);
    }
  }
  const std::int64_t whole = model::count_of_values(first.range.whole);
  if (count != whole) {
    fail<IoError>("checkpoint: {} has {} of {} elements of tensor '{}'; each once is required",
                  excerpt(path), count, whole, first.info.name);
  }
}

}  // namespace armillary::train
