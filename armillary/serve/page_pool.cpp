// page_pool.cpp: free pages are a stack, so pages that follow each other are taken together while
// the pool is fresh, and rows of a session are few ranges.
#include "armillary/serve/page_pool.h"

#include <algorithm>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::serve {

PagePool::PagePool(std::int64_t pages, std::int64_t page_tokens) : page_tokens_(page_tokens) {
  if (pages < 1 || page_tokens < 1) {
    fail<InvalidArgument>("cache: {} pages of {} tokens given; at least 1 of 1 is required", pages,
                          page_tokens);
  }
  users_.resize(static_cast<std::size_t>(pages));
  for (std::int64_t page = pages; page-- > 0;) free_.push_back(page);
}

std::int64_t PagePool::count_of_pages(std::int64_t tokens) const {
  return ceil_div(tokens, page_tokens_);
}

bool PagePool::must_copy(const PagedTokens& session) const {
  return session.tokens % page_tokens_ != 0 && users(session.pages.back()) > 1;
}

std::int64_t PagePool::pages_for(const PagedTokens& session, std::int64_t tokens) const {
  if (tokens == 0) return 0;
  return count_of_pages(session.tokens + tokens) - count_of_pages(session.tokens) +
         (must_copy(session) ? 1 : 0);
}

std::int64_t PagePool::take() {
  ARMILLARY_CHECK(!free_.empty());
  const std::int64_t page = free_.back();
  free_.pop_back();
  users_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::release(std::int64_t page) {
  if (page == kNoPage) return;
  ARMILLARY_CHECK(users(page) > 0);
  if (--users_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
}

std::optional<PageCopy> PagePool::append(PagedTokens& session, std::int64_t tokens) {
  std::optional<PageCopy> copy;
  if (tokens == 0) return copy;
  if (must_copy(session)) {
    std::int64_t& last = session.pages.back();
    copy = PageCopy{.from = last, .to = take(), .tokens = session.tokens % page_tokens_};
    release(last);
    last = copy->to;
  }
  session.tokens += tokens;
  while (static_cast<std::int64_t>(session.pages.size()) < count_of_pages(session.tokens)) {
    session.pages.push_back(take());
  }
  return copy;
}

void PagePool::cut(PagedTokens& session, std::int64_t tokens) {
  ARMILLARY_CHECK(tokens >= 0 && tokens <= session.tokens);
  while (static_cast<std::int64_t>(session.pages.size()) > count_of_pages(tokens)) {
    release(session.pages.back());
    session.pages.pop_back();
  }
  session.tokens = tokens;
}

void PagePool::leave_front(PagedTokens& session, std::int64_t tokens) {
  ARMILLARY_CHECK(tokens >= 0 && tokens <= session.tokens);
  // Those in front of a page that was left are left too.
  for (std::int64_t i = tokens / page_tokens_; i-- > 0;) {
    std::int64_t& page = session.pages[static_cast<std::size_t>(i)];
    if (page == kNoPage) return;
    release(page);
    page = kNoPage;
  }
}

PagedTokens PagePool::without_front(std::int64_t tokens) const {
  const std::int64_t pages = tokens / page_tokens_;
  return {.pages = std::vector(static_cast<std::size_t>(pages), kNoPage),
          .tokens = pages * page_tokens_};
}

PagedTokens PagePool::fork(const PagedTokens& session, std::int64_t tokens) {
  ARMILLARY_CHECK(tokens >= 0 && tokens <= session.tokens);
  PagedTokens shared{.pages = session.pages, .tokens = tokens};
  shared.pages.resize(static_cast<std::size_t>(count_of_pages(tokens)));
  for (const std::int64_t page : shared.pages) {
    if (page != kNoPage) ++users_[static_cast<std::size_t>(page)];
  }
  return shared;
}

std::vector<plan::Interval> PagePool::rows(const PagedTokens& session,
                                           plan::Interval tokens) const {
  ARMILLARY_CHECK(tokens.begin >= 0 && tokens.end <= session.tokens);
  std::vector<plan::Interval> ranges;
  std::int64_t next = 0;
  for (std::int64_t at = tokens.begin; at < tokens.end; at = next) {
    const std::int64_t page = session.pages[static_cast<std::size_t>(at / page_tokens_)];
    ARMILLARY_CHECK(page != kNoPage && users(page) > 0);  // A released page is never read.
    next = std::min(tokens.end, (at / page_tokens_ + 1) * page_tokens_);
    const std::int64_t begin = page * page_tokens_ + at % page_tokens_;
    const std::int64_t end = begin + next - at;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

}  // namespace armillary::serve
