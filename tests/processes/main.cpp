// The tests, or with --strategies or --choice one rank that a test has started.
#include <gtest/gtest.h>

#include <string_view>

#include "tests/processes/strategies.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--strategies") {
    return armillary::run_every_strategy();
  }
  if (argc == 2 && std::string_view(argv[1]) == "--choice") return armillary::run_choice();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
