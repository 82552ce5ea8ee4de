// The tests, or with --strategies, --choice or --mesh one rank that a test has started.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/processes/strategies.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--strategies") {
    return armillary::run_every_strategy();
  }
  if (argc == 2 && std::string_view(argv[1]) == "--choice") return armillary::run_choice();
  if (std::string_view(argv[argc - 1]) == "--mesh") {
    const std::string first = argv[1];  // --c10d=PLACE, or --mesh alone under mpirun.
    return armillary::run_mesh(argc == 3 ? first.substr(first.find('=') + 1) : "");
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
