// The tests, or with --c10d= one rank that a test has started.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/conformance_c10d/processes.h"
#include "tests/gpu/rank.h"

int main(int argc, char** argv) {
  const std::string_view argument = argc == 2 ? argv[1] : "";
  if (argument.starts_with("--c10d=")) {
    return armillary::run_gpu_rank(armillary::comm::place_of(std::string(argument.substr(7))));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
