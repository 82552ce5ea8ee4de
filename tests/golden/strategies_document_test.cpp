// strategies_document_test.cpp: docs/strategies.md and the table of README.md are what the program
// writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "tests/error/program.h"

namespace armillary::golden {
namespace {

std::string stored_file(const std::string& name) {
  std::ifstream file(ARMILLARY_SOURCE_DIR "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << "no " << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(StrategiesDocument, IsWhatTheProgramWrites) {
  const std::string stored = stored_file("docs/strategies.md");
  const error::ProgramRun result = error::run({"plan", "--document"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto [old_at, new_at] =
      std::mismatch(stored.begin(), stored.end(), result.out.begin(), result.out.end());
  if (old_at == stored.end() && new_at == result.out.end()) return;
  FAIL() << "docs/strategies.md:" << 1 + std::count(stored.begin(), old_at, '\n')
         << " is not what the program writes; renew it with `armillary plan --document > "
            "docs/strategies.md`, then read the difference";
}

/// README.md shows some rows of the table.
TEST(Readme, RowsOfTheTableAreWhatTheProgramPrints) {
  const error::ProgramRun table =
      error::run({"plan", "--compare", "--world", "8", "--seq", "65536", "--heads", "32",
                  "--kv-heads", "8", "--head-dim", "128", "--layout", "zigzag"});
  ASSERT_EQ(table.code, 0) << table.err;
  std::istringstream readme(stored_file("README.md"));
  int rows = 0;
  for (std::string line; std::getline(readme, line);) {
    if (line.rfind("| ", 0) != 0) continue;
    const std::size_t row = table.out.find(line.substr(0, line.find('|', 1) + 1));
    ASSERT_NE(row, std::string::npos) << line << " is in README.md only";
    EXPECT_EQ(line, table.out.substr(row, table.out.find('\n', row) - row)) << "renew README.md";
    ++rows;
  }
  EXPECT_GT(rows, 5);
}

}  // namespace
}  // namespace armillary::golden
