// mask_text_test.cpp: the text of masks: every form is the factory of its name, printed bands are
// read back, and what is wrong is refused with the part that is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::plan {
namespace {

using testing::ThrowsMessage;

TEST(ParseMask, EqualsTheFactories) {
  const Lengths same = {12, 12};
  const Lengths more = {5, 12};
  EXPECT_EQ(parse_mask("full", more), full_mask(more));
  EXPECT_EQ(parse_mask("causal", same), causal_mask(same, Align::Start));
  EXPECT_EQ(parse_mask("causal:align=start", more), causal_mask(more, Align::Start));
  EXPECT_EQ(parse_mask("causal:align=end", more), causal_mask(more, Align::End));
  EXPECT_EQ(parse_mask("window:left=3,right=1", same), window_mask(same, {3, 1}, Align::Start));
  EXPECT_EQ(parse_mask("window:align=end,right=1,left=3", more),
            window_mask(more, {3, 1}, Align::End));
  EXPECT_EQ(parse_mask("prefix:4", same), prefix_mask(same, 4, Align::End));
  EXPECT_EQ(parse_mask("prefix:4,align=start", more), prefix_mask(more, 4, Align::Start));
  EXPECT_EQ(parse_mask("block_causal:5", same), block_causal_mask(same, 5));
  EXPECT_EQ(parse_mask("documents:5,0,7", same), documents_mask(same, {5, 7}, Causal{}));
  EXPECT_EQ(parse_mask("documents:12,within=full", same), full_mask(same));
  EXPECT_EQ(parse_mask("documents:5,7,within=window,left=2,right=0", same),
            documents_mask(same, {5, 7}, Window{2, 0}));
  EXPECT_EQ(parse_mask("bands:0-5/0-4/..;2-5/4-12/-3..8", more),
            Mask(5, 12, {{.q = {0, 5}, .k = {0, 4}}, {{2, 5}, {4, 12}, -3, 8}}));
  EXPECT_EQ(parse_mask("bands:0-12/0-12/..0", same), causal_mask(same, Align::End));
}

TEST(ParseMask, ReadsWhatBandsPrint) {
  EXPECT_EQ(to_string(Band{.q = {3, 7}, .k = {1, 12}}), "3-7/1-12/..");
  EXPECT_EQ(to_string(Band{{3, 7}, {1, 12}, -4, 0}), "3-7/1-12/-4..0");
  const Lengths lengths = {12, 12};
  for (const std::string text :
       {"0-12/0-12/..", "3-7/1-12/..0", "3-7/1-12/-4..", "0-12/0-12/-3..-1"}) {
    const Mask mask = parse_mask("bands:" + text, lengths);
    ASSERT_EQ(mask.bands().size(), 1u) << text;
    EXPECT_EQ(parse_mask("bands:" + to_string(mask.bands()[0]), lengths), mask) << text;
  }
}

TEST(ParseMask, RefusesWhatItDoesNotUnderstand) {
  const std::string names =
      "full, causal, window, prefix, block_causal, documents or bands is required";
  const std::string align =
      "; where lengths differ, align=start (first query on first key) or align=end (last query on "
      "last key) is required";
  const std::string band = " given; Q0-Q1/K0-K1/LO..HI is required, such as 0-8/0-8/-3..0";
  const std::string whole = " given; a whole number from 0 to 9223372036854775807 is required";
  const std::string part = " has an empty part; a value is required after ':', ',' and '='";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"casual", "mask: 'casual' is not known; " + names + "; nearest is 'causal'"},
      {"", "mask: '' is not known; " + names},
      {"causal ", "mask: 'causal ' is not known; " + names + "; nearest is 'causal'"},
      {"full:", "mask full: ''" + part},
      {"full:3", "mask full: '3' given; no value without a key is allowed"},
      {"full:align=end", "mask full: key 'align' given; no key is allowed"},
      {"causal:align=and",
       "mask causal align: 'and' is not known; start or end is required; nearest is 'end'"},
      {"causal:align=", "mask causal: 'align='" + part},
      {"causal:aling=end",
       "mask causal key: 'aling' is not known; align is required; nearest is 'align'"},
      {"causal:align=end,align=end", "mask causal: key 'align' is given twice; once is required"},
      {"window:left=3", "mask window: no right given; right=NUMBER is required"},
      {"window:left=3,,right=1", "mask window: 'left=3,,right=1'" + part},
      {"window:left=-3,right=1", "mask window left: '-3'" + whole},
      {"window:left=+3,right=1", "mask window left: '+3'" + whole},
      {"window:left=3,right=99999999999999999999",
       "mask window right: '99999999999999999999'" + whole},
      {"window:left=3,rihgt=1",
       "mask window key: 'rihgt' is not known; left, right or align is required; nearest is "
       "'right'"},
      {"prefix",
       "mask prefix: 0 values given; exactly one, the number of keys that all see, is required"},
      {"prefix:1,2",
       "mask prefix: 2 values given; exactly one, the number of keys that all see, is required"},
      {"prefix:0x4", "mask prefix: '0x4'" + whole},
      {"prefix:13", "mask prefix: 13 of 12 keys given; 0 to 12 is required"},
      {"block_causal: 4", "mask block_causal: ' 4'" + whole},
      {"documents:5,6",
       "mask documents: lengths add up to 11, the sequence has 12 tokens; equal sums are required; "
       "nearest: 7 as the last"},
      {"documents",
       "mask documents: lengths add up to 0, the sequence has 12 tokens; equal sums are required; "
       "nearest: 12 as the last"},
      {"documents:5,9223372036854775807",
       "mask documents: a document of 9223372036854775807 tokens after 5 given; lengths of 0 and "
       "more that add up to 12 are required"},
      {"documents:5,seven", "mask documents: 'seven'" + whole},
      {"documents:12,within=ful",
       "mask documents within: 'ful' is not known; causal, full or window is required; nearest is "
       "'full'"},
      {"documents:12,left=3",
       "mask documents: left given without a window; within=window is required"},
      {"documents:12,within=window,left=3",
       "mask documents: no right given; right=NUMBER is required"},
      {"bands", "mask bands: ''" + band},
      {"bands:0-4/0-4", "mask bands: '0-4/0-4'" + band},
      {"bands:0-4/0-4/0", "mask bands: '0-4/0-4/0'" + band},
      {"bands:0-4/4/..", "mask bands: '0-4/4/..'" + band},
      {"bands:0-4/0-4/..;", "mask bands: ''" + band},
      {"bands:0-4/0-4/..x",
       "mask bands: 'x' given; a whole number from -9223372036854775808 to 9223372036854775807 is "
       "required"},
      {"bands:0-4/0-13/..", "mask: band 0-4/0-13/.. given; ranges inside 0-12/0-12 are required"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(([&text = text] {
                  parse_mask(text, {12, 12});
                }),
                ThrowsMessage<InvalidArgument>(error))
        << text;
  }
  for (const std::string name : {"causal", "window:left=1,right=0", "prefix:2"}) {
    EXPECT_THAT(([&] {
                  parse_mask(name, {4, 6});
                }),
                ThrowsMessage<InvalidArgument>("mask " + name.substr(0, name.find(':')) +
                                               ": 4 queries, 6 keys and no align given" + align));
  }
  EXPECT_THAT(([&] {
                parse_mask("documents:4", {4, 6});
              }),
              ThrowsMessage<InvalidArgument>(
                  "mask documents: 4 queries and 6 keys given; equal lengths are required"));
}

}  // namespace
}  // namespace armillary::plan
