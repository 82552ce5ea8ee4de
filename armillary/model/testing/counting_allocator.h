// counting_allocator.h: counts the memory that the tensors of a test hold, now and at the peak, of
// all threads and of each.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>

namespace armillary::model {

/// Counts the memory of CPU tensors of all threads of the process, from its first use on.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static CountingAllocator& allocator = install();
    return allocator;
  }

  std::int64_t live_bytes() const { return all_.live; }

  /// Peak of live bytes during `action`, above those that were live before.
  template <class Action>
  std::int64_t peak_bytes(const Action& action) {
    const std::int64_t before = all_.live;
    all_.peak = before;
    action();
    return all_.peak - before;
  }

  /// The same of the thread with the largest peak: memory is that of the thread that asked for it.
  template <class Action>
  std::int64_t peak_bytes_of_a_thread(const Action& action) {
    {
      const std::lock_guard lock(mutex_);
      for (Count& count : threads_) {
        count.before = count.live;
        count.peak = count.before;
      }
    }
    action();
    const std::lock_guard lock(mutex_);
    std::int64_t most = 0;
    for (const Count& count : threads_) most = std::max(most, count.peak - count.before);
    return most;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const std::size_t whole = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHeader, whole));
    if (memory == nullptr) throw std::bad_alloc();
    const Header header{.size = static_cast<std::int64_t>(bytes), .thread = &count_of_thread()};
    std::memcpy(memory, &header, sizeof header);
    all_.add(header.size);
    header.thread->add(header.size);
    void* data = memory + kHeader;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  struct Count {
    std::atomic<std::int64_t> live = 0;
    std::atomic<std::int64_t> peak = 0;
    std::int64_t before = 0;

    void add(std::int64_t size) {
      const std::int64_t now = live += size;
      std::int64_t most = peak;
      while (most < now && !peak.compare_exchange_weak(most, now)) {
      }
    }
  };
  struct Header {
    std::int64_t size;
    Count* thread;
  };
  static constexpr std::size_t kHeader = 64;  // has the header and keeps the alignment

  static CountingAllocator& install() {
    static auto* const allocator = new CountingAllocator;  // tensors may outlive everything
    c10::SetCPUAllocator(allocator, /*priority=*/100);
    return *allocator;
  }

  Count& count_of_thread() {
    thread_local Count* const mine = [this] {
      const std::lock_guard lock(mutex_);
      return &threads_.emplace_back();
    }();
    return *mine;
  }

  static void release(void* data) {
    if (data == nullptr) return;
    auto* memory = static_cast<std::byte*>(data) - kHeader;
    Header header{};
    std::memcpy(&header, memory, sizeof header);
    instance().all_.live -= header.size;
    header.thread->live -= header.size;
    std::free(memory);
  }

  Count all_;
  std::mutex mutex_;
  std::deque<Count> threads_;  ///< All threads so far; tensors may outlive theirs.
};

}  // namespace armillary::model
