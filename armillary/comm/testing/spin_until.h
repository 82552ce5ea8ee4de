// spin_until.h: for tests: threads that wait for each other without the communicator.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace armillary::comm {

/// Polls until another thread sets the flag; a test failure after 60 s. It sleeps between looks: a
/// rank that uses its core would be one that computes.
inline void spin_until(const std::atomic<bool>& flag) {
  const auto begin = std::chrono::steady_clock::now();
  while (!flag && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(flag);
}

}  // namespace armillary::comm
