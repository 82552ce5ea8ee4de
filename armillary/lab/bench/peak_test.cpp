#include "armillary/lab/bench/peak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "armillary/core/error.h"
#include "tests/sanitized.h"

namespace armillary::bench {
namespace {

// Windows that hold the starting of threads, or that not all threads share, always come out below
// one thread's peak; other tests that run beside take from some only.
TEST(Peak, OfTwoThreadsIsThatOfTwoThatRun) {
  double best = 0;
  for (int i = 0; i < 5 && best <= 0.9; ++i) {
    const double one = peak_gflops("portable", plan::Dtype::F32, 1, 0.05);
    const double two = peak_gflops("portable", plan::Dtype::F32, 2, 0.05);
    ASSERT_GT(one, 0);
    best = std::max(best, two / one);
  }
  EXPECT_GT(best, 0.9);
}

TEST(Peak, LessTimeThanAWindowIsOneWindow) {
  EXPECT_GT(peak_gflops("portable", plan::Dtype::Bf16, 1, 0), 0);
}

TEST(PeakError, WhatThereIsNot) {
  EXPECT_THAT(
      [] { peak_gflops("neon", plan::Dtype::F32, 1, 0); },
      testing::ThrowsMessage<InvalidArgument>(
          "peak: instruction set neon; amx, avx512_bf16, avx512, avx2 or portable is required"));
  EXPECT_THAT([] { peak_gflops("portable", plan::Dtype::F32, 0, 0); },
              testing::ThrowsMessage<InvalidArgument>("peak: 0 threads; at least 1 is required"));
}

/// In a process that has room for the stacks of a few threads only.
void ask_for_too_many_threads() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto room = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (64 << 20));
  const rlimit limit{room, room};
  setrlimit(RLIMIT_AS, &limit);
  alarm(30);
  try {
    peak_gflops("portable", plan::Dtype::F32, 64, 0);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(7);
  }
}

TEST(PeakError, ThreadsThatTheSystemDoesNotGive) {
  if (kSanitized) GTEST_SKIP() << "shadow memory takes more room than there would be";
  EXPECT_EXIT(ask_for_too_many_threads(), testing::ExitedWithCode(7),
              "peak: thread [0-9]+ of 64: ");
}

}  // namespace
}  // namespace armillary::bench
