#include "armillary/serve/windows.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::serve {
namespace {

/// By query, the first key that it sees: its place among the keys.
std::vector<std::int64_t> first_seen(const std::vector<std::int64_t>& queries,
                                     const std::vector<std::int64_t>& keys, std::int64_t window) {
  std::vector<std::int64_t> firsts;
  const auto all = static_cast<std::int64_t>(keys.size());
  std::int64_t key = 0;
  for (const std::int64_t query : queries) {
    while (key < all && keys[static_cast<std::size_t>(key)] <= query - window) ++key;
    if (key == all) break;  // Later queries see none either.
    firsts.push_back(key);
  }
  return firsts;
}

/// Queries from one on whose firsts rise by `rise` each.
std::size_t steps_of(const std::vector<std::int64_t>& firsts, std::size_t from, std::int64_t rise) {
  std::size_t end = from + 1;
  while (end < firsts.size() && firsts[end] == firsts[end - 1] + rise) ++end;
  return end - from;
}

}  // namespace

KeyWindows::KeyWindows(std::vector<std::int64_t> windows) {
  if (windows.empty()) windows.push_back(0);
  for (const std::int64_t window : windows) {
    if (window < 0) {
      fail<InvalidArgument>(
          "serve: a window of {} keys given; at least 1, or 0 for all before a token, is required",
          window);
    }
    const auto place = std::ranges::find(distinct_, window);
    indices_.push_back(static_cast<std::size_t>(place - distinct_.begin()));
    if (place == distinct_.end()) distinct_.push_back(window);
  }
}

std::int64_t KeyWindows::widest() const {
  return std::ranges::count(distinct_, 0) > 0 ? 0 : std::ranges::max(distinct_);
}

std::vector<std::int64_t> windows_of(const model::ModelOptions& options) {
  const bool has = (options.name == "llama" || options.name == "moe") && options.sliding_window > 0;
  return has ? std::vector<std::int64_t>{options.sliding_window} : std::vector<std::int64_t>{};
}

ReachedKeys reached_keys(const KvCache& cache, SessionId session, int rank, std::int64_t window) {
  const std::int64_t tokens = cache.tokens(session, rank);
  if (window == 0) return {.places = {0, tokens}, .positions = {}};
  const std::int64_t all = cache.tokens(session);
  const std::int64_t first = std::max<std::int64_t>(0, all - window + 1);
  const plan::Runs runs = cache.runs(session, rank);
  return {.places = {plan::tokens(plan::clip(runs, {0, first})), tokens},
          .positions = plan::positions(plan::clip(runs, {first, all}))};
}

std::vector<plan::Band> cached_bands(const std::vector<std::int64_t>& positions, std::int64_t q,
                                     const ReachedKeys& keys, std::int64_t k, std::int64_t window) {
  const std::int64_t end = k + keys.places.end - keys.places.begin;
  if (window == 0) {
    const auto queries = static_cast<std::int64_t>(positions.size());
    return {{.q = {q, q + queries}, .k = {k, end}}};
  }
  std::vector<plan::Band> bands;
  const std::vector<std::int64_t> firsts = first_seen(positions, keys.positions, window);
  for (std::size_t i = 0; i < firsts.size();) {
    // A rectangle, or a part of a diagonal, whichever has more queries.
    const std::size_t flat = steps_of(firsts, i, 0);
    const std::size_t rising = steps_of(firsts, i, 1);
    const std::size_t count = std::max(flat, rising);
    const std::int64_t query = q + static_cast<std::int64_t>(i);
    const std::int64_t key = k + firsts[i];
    plan::Band band{.q = {query, query + static_cast<std::int64_t>(count)}, .k = {key, end}};
    if (rising > flat) band.lo = key - query;
    bands.push_back(band);
    i += count;
  }
  return bands;
}

}  // namespace armillary::serve
