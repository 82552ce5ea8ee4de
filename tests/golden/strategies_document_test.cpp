// strategies_document_test.cpp: docs/strategies.md and tests/golden/pictures.txt are what the
// program writes.
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "tests/error/program.h"
#include "tests/golden/stored_file.h"

namespace armillary::golden {
namespace {

TEST(StrategiesDocument, IsWhatTheProgramWrites) {
  const error::ProgramRun result = error::run({"plan", "--document"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_stored("docs/strategies.md", result.out, "armillary plan --document > docs/strategies.md");
}

/// The words of a line behind `$ armillary `.
std::vector<std::string> arguments(const std::string& line) {
  std::istringstream words(line.substr(line.find(" plan") + 1));
  return {std::istream_iterator<std::string>(words), {}};
}

/// The commands of the file, each with what it prints; a strategy of each name is among them.
TEST(Pictures, AreThePlansOfAllStrategies) {
  std::istringstream stored(stored_file("tests/golden/pictures.txt"));
  std::string printed;
  std::set<std::string> names;
  for (std::string line; std::getline(stored, line);) {
    if (line.rfind("$ armillary plan --strategy ", 0) != 0) continue;
    const std::vector<std::string> words = arguments(line);
    const error::ProgramRun result = error::run(words);
    ASSERT_EQ(result.code, 0) << line << "\n" << result.err;
    printed += "```console\n" + line + "\n" + result.out + "```\n";
    names.insert(words.at(2).substr(0, words.at(2).find(':')));
  }
  expect_stored("tests/golden/pictures.txt", printed,
                "python3 tests/documents/console_blocks.py tests/golden/pictures.txt");
  for (const plan::StrategyInfo& info : plan::strategies()) {
    EXPECT_TRUE(names.contains(info.name)) << info.name;
  }
}

}  // namespace
}  // namespace armillary::golden
