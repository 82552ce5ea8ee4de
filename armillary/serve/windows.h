// windows.h: the windows of a model's layers, and the cached keys that new tokens see through one.
//
//   cached keys of a rank, ascending    0 1 2 3 | 8 9 10 11 | 16 17
//   a query at 20, a window of 8                      [13 ..    20]    sees the last two
//
// New tokens stand behind all cached ones, so each sees the end of what a rank has: the keys from
// a place on that never falls from query to query. Such a staircase is a few bands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "armillary/model/model_options.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/serve/kv_cache.h"

namespace armillary::serve {

/// Keys that a token sees in each layer, itself included; 0: all before it. Immutable.
class KeyWindows {
 public:
  /// Layer l has `windows`[l modulo their number]: one for all layers, several for layers that
  /// alternate, or one for each; none: no layer has a window.
  /// @throws InvalidArgument below 0.
  explicit KeyWindows(std::vector<std::int64_t> windows);

  /// The windows that occur, each once, and the place of a layer's among them.
  const std::vector<std::int64_t>& distinct() const { return distinct_; }
  std::size_t index_of(int layer) const {
    return indices_[static_cast<std::size_t>(layer) % indices_.size()];
  }
  /// The widest; 0 if a layer has none.
  std::int64_t widest() const;

 private:
  std::vector<std::int64_t> distinct_;
  std::vector<std::size_t> indices_;
};

/// The windows of a model, as KeyWindows takes them.
std::vector<std::int64_t> windows_of(const model::ModelOptions& options);

/// Cached keys of a session on one rank that the next token sees, and so all that later ones see.
struct ReachedKeys {
  plan::Interval places;                ///< Among the keys of the rank.
  std::vector<std::int64_t> positions;  ///< In the session, ascending; empty without a window.
};
ReachedKeys reached_keys(const KvCache& cache, SessionId session, int rank, std::int64_t window);

/// The pairs of queries with the cached keys that they see. Queries and keys have
/// neighbouring rows of the mask from `q` and `k` on; the positions of queries ascend and are
/// behind those of all keys. Cost: O(queries + keys).
std::vector<plan::Band> cached_bands(const std::vector<std::int64_t>& positions, std::int64_t q,
                                     const ReachedKeys& keys, std::int64_t k, std::int64_t window);

}  // namespace armillary::serve
