// calibrate_test.cpp: `calibrate` and `bench live` refuse bad input before they measure anything.
#include <gtest/gtest.h>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;

TEST(Calibrate, RefusesBadInput) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  expect_error({"calibrate", "--world", "none"}, HasSubstr("--world"));
  expect_error({"calibrate", "--world", "2", "--ranks-per-node", "3"},
               HasSubstr("2 ranks, 3 on a node; 1 to 1024 ranks, a multiple of those on a node"));
  expect_error({"calibrate", "--dtype", "fp64"}, HasSubstr("fp32, bf16 or fp16 is required"));
  expect_error({"calibrate", "--head-dim", "512"}, HasSubstr("512"));
  expect_error({"calibrate", "--tokens", "8"}, HasSubstr("blocks of up to 8 tokens"));
  expect_error({"calibrate", "--engine", "none"}, HasSubstr("--engine"));
  expect_error({"bench", "live"}, HasSubstr("--cluster: none given"));
  expect_error({"bench", "live", "--cluster", "no/such.toml"}, HasSubstr("does not exist"));
}

}  // namespace
}  // namespace armillary::error
