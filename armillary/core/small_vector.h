// small_vector.h: a vector for lists that are mostly short.
//
// A plan holds millions of lists of one or two elements, such as the views of an op. In a
// std::vector each of them is an allocation of its own and a cache miss for every reader, which
// would be most of the time that planning and proving take. A SmallVector keeps up to N elements in
// the object itself and allocates only beyond that.
//
//   up to N elements         they lie in the object itself       no allocation
//   N + 1 elements or more   they lie in an array on the heap    doubled when it is full
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

/// A subset of std::vector<T>, with room for N elements in the object itself.
///
/// (1) T is default constructible: unused room holds objects too.
/// (2) Pointers and iterators to elements are invalid after the vector is moved, swapped, assigned
/// to or grown past its capacity, also where a std::vector would keep them (move, swap).
/// (3) Elements on the heap stay there, even if the vector shrinks to N or fewer, until clear() or
/// operator=; assign() keeps the heap array.
/// (4) As with std::vector, indices and positions are not checked.
///
/// A SmallVector<View, 1> of one view costs no allocation; its second push_back makes one for two
/// elements, its third one for four.
template <class T, std::size_t N>
class SmallVector {
  static_assert(N > 0);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  /// No elements, and room for N.
  SmallVector() = default;
  /// Copies of the given elements. Lists and vectors convert implicitly, so they can be passed as a
  /// SmallVector.
  SmallVector(std::initializer_list<T> values) : SmallVector(values.begin(), values.end()) {}
  SmallVector(const std::vector<T>& values) : SmallVector(values.begin(), values.end()) {}
  /// Copies of the elements in [begin, end). Requires random-access iterators.
  template <class Iterator>
  SmallVector(Iterator begin, Iterator end) {
    reserve(static_cast<std::size_t>(end - begin));
    count_ = static_cast<std::uint32_t>(std::copy(begin, end, data()) - data());
  }
  SmallVector(const SmallVector& other) : SmallVector(other.begin(), other.end()) {}
  /// Leaves `other` empty.
  SmallVector(SmallVector&& other) noexcept
      : few_(std::move(other.few_)),
        count_(std::exchange(other.count_, 0)),
        capacity_(std::exchange(other.capacity_, N)),
        many_(std::move(other.many_)) {}
  SmallVector& operator=(const SmallVector& other) {  // NOLINT: its own copy comes first
    return *this = SmallVector(other);
  }
  /// Leaves `other` empty, unless it is the vector itself.
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this == &other) return *this;
    few_ = std::move(other.few_);
    count_ = std::exchange(other.count_, 0);
    capacity_ = std::exchange(other.capacity_, N);
    many_ = std::move(other.many_);
    return *this;
  }
  ~SmallVector() = default;

  // Access as of std::vector. Pointers and references are valid until the vector changes or moves.
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
  /// Equal elements in equal order; capacity and place do not count.
  bool operator==(const SmallVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

  /// Appends one element. Cost: constant on average, as for std::vector.
  void push_back(T value) {
    if (count_ == capacity_) reserve(std::size_t{2} * capacity_);
    data()[count_++] = std::move(value);
  }
  /// Replaces all elements by `count` copies of a value.
  void assign(std::size_t count, const T& value) {
    reserve(count);
    std::fill_n(data(), count, value);
    count_ = static_cast<std::uint32_t>(count);
  }
  /// Removes the last element, and with it all that it owns. Requires !empty().
  void pop_back() { data()[--count_] = T(); }
  /// Removes the element at `at`. Cost: one move per element behind it.
  void erase(T* at) {
    std::move(at + 1, end(), at);
    pop_back();
  }
  /// Removes all elements and frees the heap array.
  void clear() { *this = {}; }

 private:
  /// Moves the elements to a heap array if `capacity` exceeds the present one. A capacity is never
  /// lowered: only an assignment replaces it.
  void reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    auto more = std::make_unique<T[]>(capacity);
    std::move(begin(), end(), more.get());
    many_ = std::move(more);
    capacity_ = static_cast<std::uint32_t>(capacity);
  }

  // The elements are the first `count_` of `many_` if it is allocated, else of `few_`.
  std::array<T, N> few_{};
  std::uint32_t count_ = 0;
  std::uint32_t capacity_ = N;
  std::unique_ptr<T[]> many_;
};

}  // namespace armillary
