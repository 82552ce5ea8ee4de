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
  static_assert(N > 0);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() = default;
  SmallVector(std::initializer_list<T> values) : SmallVector(values.begin(), values.end()) {}
  SmallVector(const std::vector<T>& values) : SmallVector(values.begin(), values.end()) {}
  template <class Iterator>
  SmallVector(Iterator begin, Iterator end) {
    reserve(static_cast<std::size_t>(end - begin));
    count_ = static_cast<std::uint32_t>(std::copy(begin, end, data()) - data());
  }
  SmallVector(const SmallVector& other) : SmallVector(other.begin(), other.end()) {}
  SmallVector(SmallVector&& other) noexcept
      : few_(std::move(other.few_)),
        count_(std::exchange(other.count_, 0)),
        capacity_(std::exchange(other.capacity_, N)),
        many_(std::move(other.many_)) {}
  SmallVector& operator=(SmallVector other) noexcept {
    few_ = std::move(other.few_);
    count_ = other.count_;
    capacity_ = other.capacity_;
    many_ = std::move(other.many_);
    return *this;
  }
  ~SmallVector() = default;

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  T* data() { return many_ ? many_.get() : few_.data(); }
  const T* data() const { return many_ ? many_.get() : few_.data(); }
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
    if (count_ == capacity_) reserve(std::size_t{2} * capacity_);
    data()[count_++] = std::move(value);
  }
  void pop_back() { data()[--count_] = T(); }
  void erase(T* at) {
    std::move(at + 1, end(), at);
    pop_back();
  }
  void clear() { *this = {}; }

 private:
  void reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    auto more = std::make_unique<T[]>(capacity);
    std::move(begin(), end(), more.get());
    many_ = std::move(more);
    capacity_ = static_cast<std::uint32_t>(capacity);
  }

  // Elements are the first `count_` of `many_`, or without it of `few_`.
  std::array<T, N> few_{};
  std::uint32_t count_ = 0;
  std::uint32_t capacity_ = N;
  std::unique_ptr<T[]> many_;
};

}  // namespace armillary
