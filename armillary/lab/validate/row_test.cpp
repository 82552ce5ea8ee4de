// row_test.cpp: files of published rows: columns that are read, shared or missing, and values that
// are refused.
#include "armillary/lab/validate/row.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::validate {
namespace {

using testing::HasSubstr;

/// A file of one row with every column; `change` replaces the value of one.
std::string one_row(const std::string& column = "", const std::string& value = "") {
  std::string cells;
  for (const std::string& name : columns()) {
    std::string cell = name == "id" ? "\"a\"" : name == "mask" ? "\"causal\"" : "null";
    if (name == column) cell = value;
    if (cell.empty()) continue;
    cells += fmt::format("{}\"{}\": {}", cells.empty() ? "" : ", ", name, cell);
  }
  return "{\"source\": \"s\", \"rows\": [{" + cells + "}]}";
}

void expect_refused(const std::string& text, const std::string& message) {
  try {
    parse_rows(text, "mine.json");
    FAIL() << "read " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(Rows, AreReadWithNullForNotKnown) {
  const RowFile file = parse_rows(one_row("reported_iters_per_s", "4"), "mine.json");
  ASSERT_EQ(file.rows.size(), 1U);
  EXPECT_EQ(file.source, "s");
  EXPECT_EQ(file.rows[0].id, "a");
  EXPECT_TRUE(file.rows[0].causal);
  EXPECT_FALSE(file.rows[0].seq);
  EXPECT_EQ(file.rows[0].seconds(), 0.25);
}

TEST(Rows, TakeColumnsFromCommon) {
  std::string text = one_row("gpus", "");
  text.insert(1, "\"common\": {\"gpus\": 8},");
  EXPECT_EQ(parse_rows(text, "mine.json").rows[0].gpus, 8);
}

TEST(Rows, TakeThePrintedPassWhereNoneIsCorrected) {
  EXPECT_EQ(parse_rows(one_row("pass", "\"fwd\""), "mine.json").rows[0].pass, "fwd");
  EXPECT_EQ(parse_rows(one_row("corrected_pass", "\"bwd\""), "mine.json").rows[0].pass, "bwd");
  EXPECT_EQ(parse_rows(one_row("dtype", "\"fp16\""), "mine.json").rows[0].dtype, plan::Dtype::F16);
}

TEST(Rows, EveryMissingColumnIsNamed) {
  for (const std::string& column : columns()) {
    expect_refused(one_row(column, ""), "column " + column + " is missing");
  }
}

TEST(Rows, WrongValuesAreRefused) {
  expect_refused(
      "rows", "mine.json: the text is no JSON at byte 1; an object with a list `rows` is required");
  expect_refused("{\"source\": \"s\"}", "no list `rows`");
  for (const std::string key : {"source", "note"}) {
    const std::string source = key == "note" ? "\"source\": \"s\", " : "";
    for (const std::string value : {"3", "null", "true", "[\"s\"]", "{}"}) {
      expect_refused(fmt::format("{{{}\"{}\": {}, \"rows\": []}}", source, key, value),
                     fmt::format("mine.json: {} = {}; text is required", key, value));
    }
  }
  expect_refused("{\"rows\": []}", "mine.json: source is missing; text is required");
  expect_refused("{\"source\": \"\", \"rows\": []}", "source = \"\"; text is required");
  expect_refused("{\"source\": \"s\", \"rows\": [3]}", "row 0: no object");
  expect_refused(one_row("gpus", "0"), "(a): gpus = 0; a whole number above 0 or null");
  expect_refused(one_row("gpus", "\"8\""), "gpus = \"8\"");
  expect_refused(one_row("reported_time_s", "-1"), "a number from 1e-12 to 1e12 or null");
  expect_refused(one_row("reported_iters_per_s", "1e-320"), "a number from 1e-12 to 1e12 or null");
  expect_refused(one_row("load_balanced", "1"), "true, false or null");
  expect_refused(one_row("pass", "\"prefil\""), "pass = \"prefil\"; fwd, bwd, fwd_bwd, train_step");
  expect_refused(one_row("mask", "\"window\""), "causal or full");
  expect_refused(one_row("dtype", "\"bf61\""), "dtype = \"bf61\"; fp64, fp32, bf16, fp16 or null");
}

TEST(Rows, OfTheProgramHaveDifferentIds) {
  std::vector<std::string> ids;
  for (const RowFile& file : published_rows()) {
    EXPECT_NE(file.source, "");
    for (const PublishedRow& row : file.rows) ids.push_back(row.id);
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
  EXPECT_GT(ids.size(), 100U);
}

}  // namespace
}  // namespace armillary::validate
