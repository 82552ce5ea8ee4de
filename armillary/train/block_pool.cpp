#include "armillary/train/block_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace armillary::train {
namespace {

/// In front of the data, whose alignment it keeps.
struct BlockHeader {
  std::size_t size;
  BlockPool* pool;
};
constexpr std::size_t kHeaderBytes = 64;
static_assert(sizeof(BlockHeader) <= kHeaderBytes);

}  // namespace

void BlockPool::install() {
  static auto* const pool = new BlockPool;  // tensors may outlive everything
  c10::SetCPUAllocator(pool, /*priority=*/100);
}

BlockPool::~BlockPool() {
  for (const SpareBlock& block : spare_) c10::free_cpu(block.memory);
}

c10::DataPtr BlockPool::allocate(std::size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) return {nullptr, nullptr, &release, cpu};
  const BlockHeader header{.size = bytes + kHeaderBytes, .pool = this};
  void* const memory = header.size < kLeast ? c10::alloc_cpu(header.size) : take(header.size);
  std::memcpy(memory, &header, sizeof header);
  void* const data = static_cast<std::byte*>(memory) + kHeaderBytes;
  return {data, data, &release, cpu};
}

void BlockPool::release(void* data) {
  if (data == nullptr) return;
  void* const memory = static_cast<std::byte*>(data) - kHeaderBytes;
  BlockHeader header{};
  std::memcpy(&header, memory, sizeof header);
  if (header.size < kLeast) return c10::free_cpu(memory);
  header.pool->add_spare({header.size, memory});
}

// New memory takes the room of the oldest spare blocks.
void* BlockPool::take(std::size_t size) {
  std::vector<void*> surplus;
  {
    const std::lock_guard lock(mutex_);
    live_ += size;
    most_ = std::max(most_, live_);
    const auto newest = std::find_if(spare_.rbegin(), spare_.rend(),
                                     [&](const SpareBlock& block) { return block.size == size; });
    if (newest != spare_.rend()) {
      void* const memory = newest->memory;
      spare_bytes_ -= size;
      spare_.erase(std::next(newest).base());
      return memory;
    }
    while (live_ + spare_bytes_ > most_) {
      surplus.push_back(spare_.front().memory);
      spare_bytes_ -= spare_.front().size;
      spare_.pop_front();
    }
  }
  for (void* const memory : surplus) c10::free_cpu(memory);
  try {
    return c10::alloc_cpu(size);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    live_ -= size;
    throw;
  }
}

void BlockPool::add_spare(const SpareBlock& block) {
  const std::lock_guard lock(mutex_);
  live_ -= block.size;
  spare_bytes_ += block.size;
  spare_.push_back(block);
}

std::size_t BlockPool::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

std::size_t BlockPool::spare_bytes() const {
  const std::lock_guard lock(mutex_);
  return spare_bytes_;
}

}  // namespace armillary::train
