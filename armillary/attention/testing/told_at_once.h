// told_at_once.h: two ranks of a test: one fails, catches its error and stays in the group.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::attention {

/// Runs `waits` on rank 0 and `fails` on rank 1, which stays until rank 0 has left `waits`. Expects
/// that rank 0 gets an error with `reason`, the error of rank 1, long before its deadline.
inline void expect_told_at_once(const std::function<void(comm::Communicator&)>& waits,
                                const std::function<void(comm::Communicator&)>& fails,
                                const std::string& reason) {
  constexpr double kDeadline = 100;
  std::atomic<bool> told = false;
  std::string text;
  double waited_s = 0;
  const auto body = [&](comm::Communicator& comm) {
    if (comm.rank() == 1) {
      fails(comm);
      while (!told) std::this_thread::yield();
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      waits(comm);
    } catch (const Error& error) {
      text = error.what();
    }
    waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    told = true;
  };
  EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = kDeadline}), CommError) << reason;
  EXPECT_THAT(text, testing::HasSubstr(reason));
  EXPECT_LT(waited_s, kDeadline / 2) << reason;
}

}  // namespace armillary::attention
