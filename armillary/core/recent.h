// recent.h: the values that were used last; the one that was used longest ago makes room.
//
//   find: c          add: e, at most 4
//   a b c d  -->  c a b d  -->  e c a b     newest first; d is dropped
//
// All caches of the project are this one, so there is one rule of what is forgotten. Searches are
// linear: a model has few problems, and the one of the last call stands first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <utility>

namespace armillary {

/// At most `most` values, which know their keys themselves.
///
/// (1) find() and add() make a value the newest, peek() does not; (2) add() drops the oldest if
/// there are too many; (3) a reference to a value holds until that value is dropped.
///
/// Cost: O(values) for a search. Threads: one at a time.
template <class Value>
class Recent {
 public:
  explicit Recent(std::size_t most) : most_(most) {}

  /// The newest value for which `is_it(value)` holds; null if there is none.
  template <class Predicate>
  Value* find(const Predicate& is_it) {
    const auto place = std::find_if(values_.begin(), values_.end(), is_it);
    if (place == values_.end()) return nullptr;
    values_.splice(values_.begin(), values_, place);
    return &values_.front();
  }

  /// The same, and the order stays.
  template <class Predicate>
  const Value* peek(const Predicate& is_it) const {
    const auto place = std::find_if(values_.begin(), values_.end(), is_it);
    return place == values_.end() ? nullptr : &*place;
  }

  Value& add(Value value) {
    values_.push_front(std::move(value));
    if (values_.size() > most_) values_.pop_back();
    return values_.front();
  }

  std::size_t size() const { return values_.size(); }

 private:
  std::size_t most_;
  std::list<Value> values_;  ///< Newest first.
};

}  // namespace armillary
