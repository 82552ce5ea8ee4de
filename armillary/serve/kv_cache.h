// kv_cache.h: K and V of the tokens that sessions have read, in pages, spread over ranks.
//
//   session --layout--> which rank has which positions      (plan/relayout/cache_layout.h)
//           --pages---> which rows of a rank's memory       (page_pool.h)
//   layer   --rows----> K [pages * page, G, D], V [pages * page, G, E]
//
// Every rank keeps the numbers of all ranks, and memory for itself alone. So all ranks know what
// each has, and whether it has room, without a message.
//
//   append   begin_append(extent) --> new_rows() --> write() of each layer --> end_append()
//
// Letters of shapes: L tokens of this rank, G KV heads, D head dim, E value dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "armillary/plan/relayout/cache_layout.h"
#include "armillary/serve/page_pool.h"

namespace armillary::serve {

/// The number of a session; no number is used twice.
using SessionId = std::int64_t;

struct KvCacheOptions {
  std::int64_t page = 16;  ///< Tokens of a page.
  std::int64_t pages = 1;  ///< Pages of one rank.
  /// Tokens that a token may see, itself included; 0: all. Behind each append a session leaves the
  /// pages that are wholly out of sight of the next token.
  std::int64_t window = 0;
};

/// The cache of one rank. Memory of a layer is allocated when the layer is first written to.
/// Every rank makes the same calls in the same order, with tensors of its own. Threads: that of the
/// rank.
class KvCache {
 public:
  /// @throws InvalidArgument as PagePool.
  KvCache(const KvCacheOptions& options, int rank, int ranks);

  int ranks() const { return static_cast<int>(pools_.size()); }
  std::int64_t page() const { return options_.page; }

  /// A session without tokens, whose layout has all ranks.
  SessionId open();
  /// A session with the tokens of another, whose pages it shares until one of the two appends.
  SessionId fork(SessionId session);
  /// Ends a session; an append that is not ended is dropped with it.
  void release(SessionId session);

  // All functions on a session throw InvalidArgument if it is not open.

  std::int64_t tokens(SessionId session) const;
  /// Tokens on one rank.
  std::int64_t tokens(SessionId session, int rank) const;
  const plan::relayout::CacheLayout& layout(SessionId session) const;
  /// Positions of the tokens on one rank, ascending.
  plan::Runs runs(SessionId session, int rank) const;
  /// The first position that is in sight of the next token.
  std::int64_t first(SessionId session) const { return at_id(session).first; }

  /// The same once it has so many tokens.
  std::int64_t first_behind(SessionId session, std::int64_t tokens) const;

  /// Takes rows for new tokens, which are dealt over the ranks of the layout. A page that is shared
  /// is copied before. Until the append ends, functions above do not count them.
  /// @throws InvalidArgument, on all ranks alike, if a rank has too few free pages.
  void begin_append(SessionId session, const plan::relayout::CacheExtent& extent);
  /// Rows of the new tokens of this rank, in the order of their positions.
  std::vector<plan::Interval> new_rows(SessionId session) const;
  void end_append(SessionId session);
  void drop_append(SessionId session);

  /// Rows of some tokens of this rank, by their places among all that it has, new ones included.
  /// Requires tokens from first() on.
  std::vector<plan::Interval> rows(SessionId session, plan::Interval places) const;

  /// Writes K and V of some rows of a layer, in their order. Layers are written to from 0 on, on
  /// all ranks, also if there are no rows.
  void write(int layer, const std::vector<plan::Interval>& rows, const at::Tensor& k_LGD,
             const at::Tensor& v_LGE);
  /// K and V of one range of rows, as views.
  at::Tensor k(int layer, plan::Interval rows) const;
  at::Tensor v(int layer, plan::Interval rows) const;
  int layers() const { return static_cast<int>(layers_.size()); }

  /// Brings the tokens of a session from first() on to another layout: takes rows for it, calls
  /// `move` with those of this rank before and after, then gives the old pages back. @throws as
  /// begin_append(), and what `move` throws; the session then is as before.
  template <class Move>
  void change_layout(SessionId session, const plan::relayout::CacheLayout& layout,
                     const Move& move) {
    std::vector<PagedTokens> after = take_for(layout, first(session));
    try {
      move(rows_from(at_id(session).by_rank, this->layout(session), first(session)),
           rows_from(after, layout, first(session)));
    } catch (...) {
      give_back(after);
      throw;
    }
    set_layout(session, layout, std::move(after));
  }

  /// Bytes of K and V of all rows; free pages of a rank.
  std::int64_t bytes() const;
  std::int64_t free_pages(int rank) const {
    return pools_[static_cast<std::size_t>(rank)].free_pages();
  }

 private:
  struct CachedSession {
    plan::relayout::CacheLayout layout;
    std::vector<PagedTokens> by_rank;                        ///< New tokens included.
    std::vector<std::int64_t> tokens;                        ///< By rank, without them.
    std::optional<plan::relayout::CacheExtent> extent = {};  ///< That is being appended.
    std::int64_t first = 0;                                  ///< As first() says.
  };
  struct LayerMemory {
    at::Tensor k_RGD;  ///< R rows of all pages.
    at::Tensor v_RGE;
  };

  const CachedSession& at_id(SessionId session) const;
  CachedSession& at_id(SessionId session);
  /// Tokens by rank of an extent under a layout.
  std::vector<std::int64_t> counts_of(const plan::relayout::CacheLayout& layout) const;
  /// Those of them in front of a position.
  std::vector<std::int64_t> counts_before(const plan::relayout::CacheLayout& layout,
                                          std::int64_t position) const;
  void require_room(const std::vector<PagedTokens>& by_rank,
                    const std::vector<std::int64_t>& counts) const;
  void copy_rows(const PageCopy& copy);

  std::int64_t first_in_sight(const CachedSession& entry, std::int64_t tokens) const;
  /// Leaves pages that are out of sight.
  void leave_pages(CachedSession& entry);

  // Steps of change_layout(), of tokens from a position on.
  std::vector<PagedTokens> take_for(const plan::relayout::CacheLayout& layout, std::int64_t first);
  std::vector<plan::Interval> rows_from(const std::vector<PagedTokens>& by_rank,
                                        const plan::relayout::CacheLayout& layout,
                                        std::int64_t first) const;
  void give_back(std::vector<PagedTokens>& by_rank);
  void set_layout(SessionId session, const plan::relayout::CacheLayout& layout,
                  std::vector<PagedTokens> by_rank);

  KvCacheOptions options_;
  int rank_;
  std::vector<PagePool> pools_;  ///< By rank.
  std::map<SessionId, CachedSession> sessions_;
  SessionId next_ = 0;
  std::vector<LayerMemory> layers_;
};

/// Adds an extent behind the others. One that only goes on with the stripes of the last becomes a
/// part of it, so a session that decodes has one extent for all new tokens.
void add_extent(plan::relayout::CacheLayout& layout, const plan::relayout::CacheExtent& extent);

/// The extent of packed tokens of a pass, with others before and behind them.
plan::relayout::CacheExtent extent_of_pass(const plan::Layout& layout, plan::Interval packed,
                                           std::int64_t behind);

/// The layout without positions in front of `first`: those behind are where they were.
plan::relayout::CacheLayout without_front(const plan::relayout::CacheLayout& layout,
                                          std::int64_t first);

/// The extent of tokens from a position on, dealt by page in turn: page p of all positions is on
/// token rank p modulo their number.
plan::relayout::CacheExtent extent_by_page(std::int64_t position, std::int64_t tokens,
                                           std::int64_t page);

}  // namespace armillary::serve
