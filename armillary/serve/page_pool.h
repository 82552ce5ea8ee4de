// page_pool.h: the pages of one rank's cache as numbers: which are free, and which sessions use
// which. It has no memory; kv_cache.h has.
//
//   session A   page 0, page 1, page 4 (3 of 16 tokens)
//   fork of A   page 0, page 1, page 4                      three pages with two users each
//   A appends   page 4 is copied to page 7, and A goes on there
//
// A page is released when its last user is gone. All pages of a session but the last are full, so
// only the last is ever written to, and never one that another session uses too. A session may
// leave its first pages early, if it will not read them again: they keep their numbers of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "armillary/plan/runs.h"

namespace armillary::serve {

/// Stands for a page that a session has left.
inline constexpr std::int64_t kNoPage = -1;

/// The tokens of one session on one rank, in the order in which they came.
struct PagedTokens {
  std::vector<std::int64_t> pages;  ///< kNoPage for those at the front that it has left.
  std::int64_t tokens = 0;
};

/// A page whose first tokens are to be copied to another before that is written to.
struct PageCopy {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t tokens = 0;
};

class PagePool {
 public:
  /// @throws InvalidArgument below 1 page, or 1 token a page.
  PagePool(std::int64_t pages, std::int64_t page_tokens);

  std::int64_t pages() const { return static_cast<std::int64_t>(users_.size()); }
  std::int64_t page_tokens() const { return page_tokens_; }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  /// Sessions that use a page.
  int users(std::int64_t page) const { return users_[static_cast<std::size_t>(page)]; }

  /// Pages that append() takes.
  std::int64_t pages_for(const PagedTokens& session, std::int64_t tokens) const;
  /// Adds tokens to a session. Requires pages_for() free pages.
  std::optional<PageCopy> append(PagedTokens& session, std::int64_t tokens);
  /// Leaves the first `tokens` of a session.
  void cut(PagedTokens& session, std::int64_t tokens);
  /// Leaves the full pages in front of the one that has token number `tokens`.
  void leave_front(PagedTokens& session, std::int64_t tokens);
  /// A session that has left them, and has no other page.
  PagedTokens without_front(std::int64_t tokens) const;
  /// A session that shares the first `tokens` of another.
  PagedTokens fork(const PagedTokens& session, std::int64_t tokens);

  /// The rows of some tokens of a session, if a page has `page_tokens` rows: as few ranges as
  /// possible, in order. Requires that it has not left their pages.
  std::vector<plan::Interval> rows(const PagedTokens& session, plan::Interval tokens) const;

 private:
  std::int64_t take();
  void release(std::int64_t page);
  /// Pages of so many tokens.
  std::int64_t count_of_pages(std::int64_t tokens) const;
  /// The last page is not full and not the session's alone.
  bool must_copy(const PagedTokens& session) const;

  std::int64_t page_tokens_;
  std::vector<int> users_;          ///< By page.
  std::vector<std::int64_t> free_;  ///< A stack, the lowest page on top at first.
};

}  // namespace armillary::serve
