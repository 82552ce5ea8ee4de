// validation_document_test.cpp: docs/validation.md ends with what `armillary validate` prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/error/program.h"

namespace armillary::golden {
namespace {

TEST(ValidationDocument, HoldsWhatTheProgramPrints) {
  std::ifstream file(ARMILLARY_SOURCE_DIR "/docs/validation.md", std::ios::binary);
  ASSERT_TRUE(file);
  const std::string stored{std::istreambuf_iterator<char>(file), {}};
  const std::string line = "<!-- What follows is printed by `armillary validate`. -->\n\n";
  const std::size_t begin = stored.find(line);
  ASSERT_NE(begin, std::string::npos);
  const error::ProgramRun result = error::run({"validate"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string expected = stored.substr(0, begin + line.size()) + result.out;
  const auto [old_at, new_at] =
      std::mismatch(stored.begin(), stored.end(), expected.begin(), expected.end());
  if (old_at == stored.end() && new_at == expected.end()) return;
  FAIL() << "docs/validation.md:" << 1 + std::count(stored.begin(), old_at, '\n')
         << " is not what `armillary validate` prints; renew it with `python3 tools/validation.py "
            "PROGRAM`, then read the difference";
}

}  // namespace
}  // namespace armillary::golden
