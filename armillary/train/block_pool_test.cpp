#include "armillary/train/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace armillary::train {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockPool, GivesABlockOfTheSameSizeAgain) {
  BlockPool pool;
  c10::DataPtr first = pool.allocate(3 * kMiB);
  c10::DataPtr other = pool.allocate(2 * kMiB);
  const void* const at = first.get();
  const void* const other_at = other.get();
  first.clear();
  other.clear();
  EXPECT_GE(pool.spare_bytes(), 5 * kMiB);
  const c10::DataPtr less = pool.allocate(2 * kMiB);
  EXPECT_EQ(less.get(), other_at);
  const c10::DataPtr again = pool.allocate(3 * kMiB);
  EXPECT_EQ(again.get(), at);
  EXPECT_EQ(pool.spare_bytes(), 0U);
}

TEST(BlockPool, TakesNoMoreThanLiveBlocksOnceDid) {
  BlockPool pool;
  std::mt19937 random(7);
  std::vector<c10::DataPtr> live;
  std::size_t most = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    if (!live.empty() && random() % 2 == 0) {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
    } else if (live.size() < 12) {
      live.push_back(pool.allocate((1 + random() % 5) * kMiB));
    }
    most = std::max(most, pool.live_bytes());
    ASSERT_LE(pool.live_bytes() + pool.spare_bytes(), most) << turn;
  }
  live.clear();
  EXPECT_EQ(pool.live_bytes(), 0U);
  EXPECT_GT(pool.spare_bytes(), 0U);
}

TEST(BlockPool, LeavesSmallBlocksToOthers) {
  BlockPool pool;
  c10::DataPtr none = pool.allocate(0);
  EXPECT_EQ(none.get(), nullptr);
  c10::DataPtr small = pool.allocate(1000);
  std::memset(small.get(), 1, 1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.get()) % 64, 0U);
  EXPECT_EQ(pool.live_bytes(), 0U);
  small.clear();
  EXPECT_EQ(pool.spare_bytes(), 0U);
}

TEST(BlockPool, GivesEachThreadBlocksOfItsOwn) {
  BlockPool pool;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&pool, thread] {
      for (int turn = 0; turn < 50; ++turn) {
        const std::size_t bytes = (1 + static_cast<std::size_t>(turn % 2)) * kMiB;
        const c10::DataPtr block = pool.allocate(bytes);
        auto* const data = static_cast<unsigned char*>(block.get());
        std::memset(data, thread + 1, bytes);
        std::this_thread::yield();
        for (std::size_t i = 0; i < bytes; i += 4096) ASSERT_EQ(data[i], thread + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.live_bytes(), 0U);
}

}  // namespace
}  // namespace armillary::train
