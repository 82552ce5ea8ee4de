// text_test.cpp: a relayout as its tables and grid, and as JSON.
#include "armillary/plan/relayout/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/core/testing/expect_error.h"
#include "armillary/plan/relayout/json.h"
#include "armillary/plan/relayout/relayout_program.h"
#include "armillary/plan/relayout/testing/relayout_shapes.h"

namespace armillary::plan::relayout {
namespace {

using testing::HasSubstr;

const RelayoutShape kTwoRanks{
    .cache = {.layers = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .dtype = Dtype::F32},
    .from = one_extent(8, {}, 2),
    .to = one_extent(8, {.kind = LayoutKind::Striped, .stripe = 2}, 2),
    .world = 2};

TEST(RelayoutGrid, HasPartsBytesAndThePlaceOfAFault) {
  const Relayout relayout = build_relayout(kTwoRanks);
  const Diagnostic at{.rank = 1, .op = 1, .rule = "twice", .text = "k arrives twice"};
  const std::string grid = to_grid(relayout.world(), kTwoRanks, &at);
  EXPECT_THAT(grid, HasSubstr("relayout contiguous over ranks 0-1 -> striped:2 over ranks 0-1: "
                              "2 layers, 8 tokens; 256 bytes move, 256 stay\n"));
  EXPECT_THAT(grid, HasSubstr("\n1             0        1           2\n"));
  EXPECT_THAT(grid, HasSubstr("keep(kv0) kv2<r1 kv1>r1"));
  EXPECT_THAT(grid, HasSubstr("kv2>r0 kv1<r0 keep(kv3)   <-- HERE rank 1: k arrives twice\n"));
  EXPECT_THAT(grid, HasSubstr("\nstep 1    keep(kv4) kv6<r1 kv5>r1"));
}

TEST(RelayoutJson, ComesBack) {
  for (const CacheLayout& to : small_layouts(13)) {
    const RelayoutShape shape{
        .cache = kSmallCache, .from = small_layouts(13)[16], .to = to, .world = 5};
    const RelayoutText relayout{shape, build_relayout(shape).ranks};
    EXPECT_EQ(parse_json(to_json(relayout)), relayout) << name_of(shape);
  }
}

TEST(RelayoutJson, NamesThePlaceOfAFault) {
  const std::string good = to_json({kTwoRanks, build_relayout(kTwoRanks).ranks});
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& text) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_THAT(error_of([&] { parse_json(bad); }), HasSubstr(text));
  };
  expect(R"("format_version":1)", R"("format_version":2)", "format_version is 2; 1 is required");
  expect("striped:2", "stripe:2", "to.extents[0].layout");
  expect(R"("kv_heads":1)", R"("kv_head":1)", "cache.kv_head is not a known key");
  expect(R"("world":2)", R"("world":1)", "ranks below 1 are required");
  expect(R"("op":"keep")", R"("op":"put")", "ranks[0].ops[0].op");
}

}  // namespace
}  // namespace armillary::plan::relayout
