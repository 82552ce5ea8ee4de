// validate_test.cpp: tests/golden/validate.txt is what `armillary simulate --published`
// prints.
#include <gtest/gtest.h>

#include "tests/error/program.h"
#include "tests/golden/stored_file.h"

namespace armillary::golden {
namespace {

TEST(Validate, PrintsTheStoredTables) {
  const error::ProgramRun result = error::run({"simulate", "--published"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_stored("tests/golden/validate.txt", result.out, "python3 tools/validation.py PROGRAM");
}

}  // namespace
}  // namespace armillary::golden
