// block_ids.h: a list of block ids, stored as runs of consecutive ids.
//
// A plan holds millions of such lists, and nearly all of them are consecutive: the blocks that a
// rank owns, and those that others need of it. A list of one run takes 16 bytes and no allocation,
// however many blocks it has, and two lists are compared run by run.
//
//   BlockIds{4, 5, 6}         one run, 4-6, stored in the object itself
//   BlockIds{0, 4, 5, 6, 2}   three runs, 0, 4-6 and 2, stored on the heap
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

namespace armillary::plan {

/// The ids first, first + 1, ..., last. The default run has no ids (last < first).
struct IdRun {
  int first = 0;
  int last = -1;
  bool operator==(const IdRun&) const = default;
  std::size_t size() const { return static_cast<std::size_t>(last) - first + 1; }
};

/// A list of ids in any order, changed by appending only. It is iterated id by id, or run by run
/// with runs(). Runs are as long as possible: a run ends where the next id is not its last id + 1,
/// so equal lists have equal runs.
class BlockIds {
 public:
  class Iterator;
  using value_type = int;
  using iterator = Iterator;
  using const_iterator = Iterator;

  BlockIds() = default;
  /// Both append the ids one by one, in the given order.
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

  /// Appends an id: extends the last run if `id` follows it, begins a new run otherwise.
  void push_back(int id);
  /// Appends the ids of a run that is not empty: as push_back() does, all at once.
  void append(IdRun run);

  /// The runs in list order; valid until the list changes, moves or dies.
  std::span<const IdRun> runs() const {
    if (many_) return *many_;
    return {&one_, one_.size() == 0 ? std::size_t{0} : 1};
  }
  bool empty() const { return runs().empty(); }
  /// Number of ids. Cost: O(runs).
  std::size_t size() const;
  /// The first and the last id of the list. Both require that it is not empty.
  int front() const { return runs().front().first; }
  int back() const { return runs().back().last; }
  /// The ids one by one, in list order.
  Iterator begin() const;
  Iterator end() const;
  bool operator==(const BlockIds& other) const;

 private:
  // The runs are `many_` if it is set. Otherwise the list has the one run `one_`, or none if `one_`
  // has no ids.
  IdRun one_;
  std::unique_ptr<std::vector<IdRun>> many_;
};

/// True if the ids ascend strictly and lie in [0, end). Cost: O(runs).
bool ascend_below(const BlockIds& ids, int end);

/// True if `all` has every id of `some`. Requires that both ascend. Cost: O(runs).
bool includes(const BlockIds& all, const BlockIds& some);

/// True if the lists share an id. Requires that both ascend. Cost: O(runs).
inline bool meet(const BlockIds& a, const BlockIds& b);

/// Forward iterator over the ids; dereferences to the id by value. Invalid once the list changes.
class BlockIds::Iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = int;
  using difference_type = std::ptrdiff_t;
  using pointer = const int*;
  using reference = int;

  Iterator() = default;
  /// At the first id of `run`; the run past the last one gives the end iterator.
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
  std::size_t offset_ = 0;  ///< Ids of `run_` before the current one.
};

inline BlockIds::Iterator BlockIds::begin() const {
  return Iterator(runs().data());
}
inline BlockIds::Iterator BlockIds::end() const {
  return Iterator(runs().data() + runs().size());
}
// Lists of one run compare 8 bytes; a list on the heap never equals one in the object, because it
// has at least two runs.
inline bool BlockIds::operator==(const BlockIds& other) const {
  if (!many_ && !other.many_) return one_ == other.one_;
  return many_ && other.many_ && *many_ == *other.many_;
}
// A merge of two ascending lists: the run that ends first cannot meet any later run of the other.
inline bool meet(const BlockIds& a, const BlockIds& b) {
  const std::span<const IdRun> lefts = a.runs();
  const std::span<const IdRun> rights = b.runs();
  auto left = lefts.begin();
  auto right = rights.begin();
  while (left != lefts.end() && right != rights.end()) {
    if (left->first <= right->last && right->first <= left->last) return true;
    left->last < right->last ? ++left : ++right;
  }
  return false;
}

}  // namespace armillary::plan
