// block_ids.h: a list of blocks, kept as runs of neighbouring ids.
//
// A plan is millions of such lists, and nearly all are neighbours: what a rank owns, and what
// others need of it. So a list takes 16 bytes and no allocation, whatever the number of its blocks,
// and two are compared run by run.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

namespace armillary::plan {

/// Ids first, first + 1, ... last.
struct IdRun {
  int first = 0;
  int last = -1;
  bool operator==(const IdRun&) const = default;
  std::size_t size() const { return static_cast<std::size_t>(last) - first + 1; }
};

/// Any ids in any order, of which only the last can be changed: by adding one. Lists that are equal
/// have equal runs: a run ends where the next id is not the neighbour above.
class BlockIds {
 public:
  class Iterator;
  using value_type = int;
  using iterator = Iterator;
  using const_iterator = Iterator;

  BlockIds() = default;
  BlockIds(std::initializer_list<int> ids);
  BlockIds(const std::vector<int>& ids);
  BlockIds(const BlockIds& other)
      : one_(other.one_),
        many_(other.many_ ? std::make_unique<std::vector<IdRun>>(*other.many_) : nullptr) {}
  BlockIds(BlockIds&& other) noexcept = default;
  BlockIds& operator=(const BlockIds& other) {
    if (this != &other) *this = BlockIds(other);
    return *this;
  }
  BlockIds& operator=(BlockIds&& other) noexcept = default;
  ~BlockIds() = default;

  void push_back(int id);

  std::span<const IdRun> runs() const {
    if (many_) return *many_;
    return {&one_, one_.size() == 0 ? std::size_t{0} : 1};
  }
  bool empty() const { return runs().empty(); }
  std::size_t size() const;                           ///< Cost: O(runs).
  int front() const { return runs().front().first; }  ///< Requires that there is one.
  int back() const { return runs().back().last; }     ///< The same.
  Iterator begin() const;
  Iterator end() const;
  bool operator==(const BlockIds& other) const;

 private:
  // Runs are in `many_`, or without it there is one, or none if it has no ids.
  IdRun one_;
  std::unique_ptr<std::vector<IdRun>> many_;
};

/// Do the ids ascend, and lie in [0, end)?
bool ascend_below(const BlockIds& ids, int end);

/// Has `all` every id of `some`? Both ascend. Cost: O(runs).
bool includes(const BlockIds& all, const BlockIds& some);

/// Do they share an id? Both ascend. Cost: O(runs).
bool meet(const BlockIds& a, const BlockIds& b);

class BlockIds::Iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = int;
  using difference_type = std::ptrdiff_t;
  using pointer = const int*;
  using reference = int;

  Iterator() = default;
  explicit Iterator(const IdRun* run) : run_(run) {}
  int operator*() const { return run_->first + static_cast<int>(offset_); }
  Iterator& operator++() {
    if (++offset_ == run_->size()) {
      ++run_;
      offset_ = 0;
    }
    return *this;
  }
  Iterator operator++(int) {
    const Iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Iterator&) const = default;

 private:
  const IdRun* run_ = nullptr;
  std::size_t offset_ = 0;
};

inline BlockIds::Iterator BlockIds::begin() const {
  return Iterator(runs().data());
}
inline BlockIds::Iterator BlockIds::end() const {
  return Iterator(runs().data() + runs().size());
}
inline bool BlockIds::operator==(const BlockIds& other) const {
  if (!many_ && !other.many_) return one_ == other.one_;
  return many_ && other.many_ && *many_ == *other.many_;
}

}  // namespace armillary::plan
