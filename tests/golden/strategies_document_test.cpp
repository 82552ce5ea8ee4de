// strategies_document_test.cpp: docs/strategies.md is what the program writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/error/program.h"

namespace armillary::golden {
namespace {

TEST(StrategiesDocument, IsWhatTheProgramWrites) {
  std::ifstream file(ARMILLARY_SOURCE_DIR "/docs/strategies.md", std::ios::binary);
  ASSERT_TRUE(file) << "no docs/strategies.md";
  const std::string stored{std::istreambuf_iterator<char>(file), {}};
  const error::Result result = error::run({"plan", "--document"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto [old_at, new_at] =
      std::mismatch(stored.begin(), stored.end(), result.out.begin(), result.out.end());
  if (old_at == stored.end() && new_at == result.out.end()) return;
  FAIL() << "docs/strategies.md:" << 1 + std::count(stored.begin(), old_at, '\n')
         << " is not what the program writes; renew it with `armillary plan --document > "
            "docs/strategies.md`, then read the difference";
}

}  // namespace
}  // namespace armillary::golden
