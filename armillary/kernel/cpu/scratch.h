// scratch.h: memory of a thread that outlives a call: it grows to the largest that was asked for,
// and stays.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace armillary::kernel::cpu {

class Scratch {
 public:
  /// At least `count` floats, aligned to 64 bytes; what was there before is lost.
  float* floats(std::size_t count) {
    if (count > count_) {
      data_.reset();  // never both at once
      data_.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlign)));
      count_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlign); }
  };
  std::unique_ptr<float, Free> data_;
  std::size_t count_ = 0;
};

/// Cuts one piece of scratch into aligned arrays: first sizes, then addresses.
class Carver {
 public:
  std::size_t reserve(std::size_t count) {
    const std::size_t begin = size_;
    size_ += (count + 15) / 16 * 16;
    return begin;
  }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

}  // namespace armillary::kernel::cpu
