#include "armillary/bench/peak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

// Windows that hold the starting of threads, or that not all threads share, come out below one
// thread's peak. Two threads of one core, or of a busy machine, are still not slower than one.
TEST(Peak, OfTwoThreadsIsThatOfTwoThatRun) {
  const double one = peak_gflops("portable", plan::Dtype::F32, 1, 0.05);
  const double two = peak_gflops("portable", plan::Dtype::F32, 2, 0.05);
  EXPECT_GT(one, 0);
  EXPECT_GT(two, 0.9 * one);
}

TEST(Peak, LessTimeThanAWindowIsOneWindow) {
  EXPECT_GT(peak_gflops("portable", plan::Dtype::Bf16, 1, 0), 0);
}

TEST(PeakError, WhatThereIsNot) {
  EXPECT_THAT([] { peak_gflops("neon", plan::Dtype::F32, 1, 0); },
              testing::ThrowsMessage<InvalidArgument>(
                  "peak: instruction set neon; avx512, avx2 or portable is required"));
  EXPECT_THAT([] { peak_gflops("portable", plan::Dtype::F32, 0, 0); },
              testing::ThrowsMessage<InvalidArgument>("peak: 0 threads; at least 1 is required"));
}

}  // namespace
}  // namespace armillary::bench
