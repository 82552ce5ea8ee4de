// small_vector.h: a vector that is mostly short.
//
// A plan is millions of lists of one or two things. In vectors each is an allocation of its own,
// and a cache miss for every reader: they are most of the time that planning and proving take.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace armillary {

/// Like std::vector<T>, but up to N elements lie in the object itself. T has a default value.
/// Moving or copying the object, or its growing past N, moves its elements to another place.
template <class T, std::size_t N>
class SmallVector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() = default;
  SmallVector(std::initializer_list<T> values) : SmallVector(values.begin(), values.end()) {}
  SmallVector(const std::vector<T>& values) : SmallVector(values.begin(), values.end()) {}
  template <class Iterator>
  SmallVector(Iterator begin, Iterator end) {
    if (end - begin > static_cast<std::ptrdiff_t>(N)) {
      many_ = std::make_unique<std::vector<T>>(begin, end);
    } else {
      few_count_ = static_cast<std::uint32_t>(std::copy(begin, end, few_.begin()) - few_.begin());
    }
  }
  SmallVector(const SmallVector& other)
      : few_(other.few_),
        few_count_(other.few_count_),
        many_(other.many_ ? std::make_unique<std::vector<T>>(*other.many_) : nullptr) {}
  SmallVector(SmallVector&& other) noexcept
      : few_(std::move(other.few_)),
        few_count_(std::exchange(other.few_count_, 0)),
        many_(std::move(other.many_)) {}
  SmallVector& operator=(SmallVector other) noexcept {
    few_ = std::move(other.few_);
    few_count_ = other.few_count_;
    many_ = std::move(other.many_);
    return *this;
  }
  ~SmallVector() = default;

  std::size_t size() const { return many_ ? many_->size() : few_count_; }
  bool empty() const { return size() == 0; }
  T* data() { return many_ ? many_->data() : few_.data(); }
  const T* data() const { return many_ ? many_->data() : few_.data(); }
  T* begin() { return data(); }
  T* end() { return data() + size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  const T& front() const { return data()[0]; }
  const T& back() const { return data()[size() - 1]; }
  bool operator==(const SmallVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

  void push_back(T value) {
    if (!many_ && few_count_ < N) {
      few_[few_count_++] = std::move(value);
      return;
    }
    if (!many_) {
      many_ = std::make_unique<std::vector<T>>(std::move_iterator(few_.begin()),
                                               std::move_iterator(few_.end()));
    }
    few_count_ = 0;
    many_->push_back(std::move(value));
  }
  void pop_back() {
    if (many_) {
      many_->pop_back();
    } else {
      few_[--few_count_] = T();
    }
  }
  void erase(T* at) {
    std::move(at + 1, end(), at);
    pop_back();
  }
  void clear() { *this = {}; }

 private:
  // Elements are in `many_`, or without it, the first `few_count_` of `few_`.
  std::array<T, N> few_{};
  std::uint32_t few_count_ = 0;
  std::unique_ptr<std::vector<T>> many_;
};

}  // namespace armillary
