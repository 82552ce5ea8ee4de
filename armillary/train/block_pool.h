// block_pool.h: memory of tensors that is used again. A step asks for the same sizes as the step
// before; memory that goes back to the system in between is cleared by it, page by page, each time.
//
//   allocate(size) <-- a spare block of this very size, else a new one
//   free --> spare blocks; the oldest go back to the system
//
// Live and spare blocks together never take more than live ones once did, so the peak of a process
// is what it would be without.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <list>
#include <mutex>

namespace armillary::train {

/// An allocator of CPU tensors; blocks below kLeast are those of ATen. All threads of a process
/// share it.
class BlockPool : public c10::Allocator {
 public:
  static constexpr std::size_t kLeast = std::size_t{1} << 20;

  /// Makes it the allocator of all CPU tensors from now on. It lives as long as the process.
  static void install();

  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  /// Requires that no block is in use.
  ~BlockPool() override;

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    default_copy_data(dest, src, bytes);
  }

  /// Bytes of blocks from kLeast on, in use and spare.
  std::size_t live_bytes() const;
  std::size_t spare_bytes() const;

 private:
  struct SpareBlock {
    std::size_t size;
    void* memory;
  };

  static void release(void* data);
  void* take(std::size_t size);
  void add_spare(const SpareBlock& block);

  mutable std::mutex mutex_;
  std::list<SpareBlock> spare_;  ///< The newest is the last.
  std::size_t live_ = 0, most_ = 0, spare_bytes_ = 0;
};

}  // namespace armillary::train
