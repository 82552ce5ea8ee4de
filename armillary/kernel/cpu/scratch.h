// scratch.h: memory of a thread that outlives a call: it grows to the largest request and stays.
//
// Drivers keep one Scratch per thread and purpose (thread_local), so calls of equal size allocate
// nothing after the first. Memory is freed when the thread ends.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace armillary::kernel::cpu {

/// One growing allocation. Not thread-safe: it belongs to one thread, and there is no way to shrink
/// it. Cost: one allocation when a request is larger than all before, otherwise a comparison.
class Scratch {
 public:
  /// At least `count` floats, aligned to 64 bytes, not initialised. A larger request than all
  /// before frees the old memory, and its contents are lost.
  float* floats(std::size_t count) {
    if (count > count_) {
      data_.reset();  // free first: never hold both at once
      data_.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlign)));
      count_ = count;
    }
    return data_.get();
  }

 private:
  /// One cache line, and one AVX-512 vector or row of an AMX tile.
  static constexpr std::align_val_t kAlign{64};
  // operator new with an alignment needs operator delete with the same one.
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlign); }
  };
  /// The allocation, and its size in floats.
  std::unique_ptr<float, Free> data_;
  std::size_t count_ = 0;
};

/// Cuts one piece of scratch into aligned arrays. First reserve() every array, then allocate size()
/// floats once, then add each offset to the address.
///
///   reserve(20) -> 0    reserve(4) -> 32    size() -> 48
class Carver {
 public:
  /// Offset in floats of an array of `count` floats, a multiple of 16 floats (64 bytes).
  std::size_t reserve(std::size_t count) {
    const std::size_t begin = size_;
    size_ += (count + 15) / 16 * 16;
    return begin;
  }
  /// Floats of all arrays so far, padding included: a multiple of 16. The base address must be
  /// aligned to 64 bytes, as that of Scratch is.
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

}  // namespace armillary::kernel::cpu
