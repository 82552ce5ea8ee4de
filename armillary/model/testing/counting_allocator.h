// counting_allocator.h: counts the memory that the tensors of a test hold, now and at the peak.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace armillary::model {

/// Counts the memory of CPU tensors of all threads of the process, from its first use on.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static CountingAllocator& allocator = install();
    return allocator;
  }

  std::int64_t live_bytes() const { return live_; }

  /// Peak of live bytes during `action`, above those that were live before.
  template <class Action>
  std::int64_t peak_bytes(const Action& action) {
    const std::int64_t before = live_;
    peak_ = before;
    action();
    return peak_ - before;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const std::size_t whole = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHeader, whole));
    if (memory == nullptr) throw std::bad_alloc();
    const auto size = static_cast<std::int64_t>(bytes);
    std::memcpy(memory, &size, sizeof size);
    const std::int64_t live = live_ += size;
    std::int64_t peak = peak_;
    while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
    }
    void* data = memory + kHeader;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  static constexpr std::size_t kHeader = 64;  // stores the size and keeps the alignment

  static CountingAllocator& install() {
    static auto* const allocator = new CountingAllocator;  // tensors may outlive everything
    c10::SetCPUAllocator(allocator, /*priority=*/100);
    return *allocator;
  }

  static void release(void* data) {
    if (data == nullptr) return;
    auto* memory = static_cast<std::byte*>(data) - kHeader;
    std::int64_t size = 0;
    std::memcpy(&size, memory, sizeof size);
    instance().live_ -= size;
    std::free(memory);
  }

  std::atomic<std::int64_t> live_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

}  // namespace armillary::model
