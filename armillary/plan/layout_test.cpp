// layout_test.cpp: layouts: each token has one owner, shards are few runs, causal work is even
// where the name says so; texts are read as they are printed.
#include "armillary/plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

using testing::ThrowsMessage;

constexpr int kLayoutWorlds[] = {1, 2, 3, 4, 5, 7, 8, 13};
constexpr std::int64_t kLengths[] = {0, 1, 2, 5, 13, 64, 97, 257};

/// Owner of every token; also checks that each has exactly one and that ranks keep them in order.
std::vector<int> owners(const std::vector<Runs>& shards, std::int64_t length) {
  std::vector<int> owner(static_cast<std::size_t>(length), -1);
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    const std::vector<std::int64_t> tokens = positions(shards[rank]);
    EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end())) << "rank " << rank;
    for (const std::int64_t position : tokens) {
      if (position < 0 || position >= length || owner[position] != -1) {
        ADD_FAILURE() << "rank " << rank << " holds " << position << " of " << length << " tokens";
        continue;
      }
      owner[position] = static_cast<int>(rank);
    }
    for (const plan::Run& run : shards[rank]) EXPECT_GE(run.count, 1) << "rank " << rank;
  }
  EXPECT_EQ(std::count(owner.begin(), owner.end(), -1), 0) << "tokens without an owner";
  return owner;
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const std::string name : {"contiguous", "zigzag", "balanced", "striped:1", "striped:2",
                                 "striped:3", "striped:16", "striped:9223372036854775807"}) {
    layouts.push_back(parse_layout(name));
  }
  return layouts;
}

TEST(Layout, EveryTokenHasOneOwner) {
  for (const Layout& layout : all_layouts()) {
    for (const int world : kLayoutWorlds) {
      for (const std::int64_t q_len : kLengths) {
        for (const std::int64_t kv_len : {q_len, q_len / 2, q_len + 3}) {
          SCOPED_TRACE(testing::Message() << to_string(layout) << ", world " << world << ", "
                                          << q_len << " queries, " << kv_len << " keys");
          const Shards dealt = shards(layout, causal_mask({q_len, kv_len}, Align::End), world);
          ASSERT_EQ(dealt.q.size(), static_cast<std::size_t>(world));
          ASSERT_EQ(dealt.kv.size(), static_cast<std::size_t>(world));
          owners(dealt.q, q_len);
          owners(dealt.kv, kv_len);
          if (q_len == kv_len) {
            EXPECT_EQ(dealt.q, dealt.kv);
          }
        }
      }
    }
  }
}

std::vector<int> owners(const Layout& layout, std::int64_t length, int world) {
  return owners(shards(layout, full_mask({length, length}), world).q, length);
}

TEST(Layout, TokensLiveWhereTheNameSays) {
  EXPECT_EQ(owners(parse_layout("contiguous"), 10, 4),
            (std::vector<int>{0, 0, 1, 1, 1, 2, 2, 3, 3, 3}));
  EXPECT_EQ(owners(parse_layout("zigzag"), 10, 2),
            (std::vector<int>{0, 0, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(owners(parse_layout("zigzag"), 11, 2),
            (std::vector<int>{0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(owners(parse_layout("striped"), 7, 3), (std::vector<int>{0, 1, 2, 0, 1, 2, 0}));
  for (const int world : kLayoutWorlds) {
    for (const std::int64_t length : kLengths) {
      for (const std::int64_t stripe : {1, 2, 3, 16}) {
        SCOPED_TRACE(testing::Message()
                     << "world " << world << ", " << length << " tokens, stripe " << stripe);
        const std::vector<int> owner =
            owners({.kind = LayoutKind::Striped, .stripe = stripe}, length, world);
        for (std::int64_t i = 0; i < length; ++i) ASSERT_EQ(owner[i], i / stripe % world) << i;
      }
      SCOPED_TRACE(testing::Message() << "world " << world << ", " << length << " tokens");
      const std::vector<int> contiguous = owners(parse_layout("contiguous"), length, world);
      EXPECT_TRUE(std::is_sorted(contiguous.begin(), contiguous.end()));
    }
  }
}

TEST(Layout, ShardsAreAFewRunsWhateverTheLength) {
  const Mask mask = causal_mask({std::int64_t{1} << 31, std::int64_t{1} << 31}, Align::Start);
  EXPECT_EQ(shards(parse_layout("contiguous"), mask, 4).q[1], (Runs{{1 << 29, 1 << 29}}));
  EXPECT_EQ(shards(parse_layout("zigzag"), mask, 4).q[3],
            (Runs{{3 << 28, 1 << 28}, {std::int64_t{4} << 28, 1 << 28}}));
  EXPECT_EQ(shards(parse_layout("striped:8"), mask, 4).q[1], (Runs{{8, 1 << 26, 32, 8}}));
  EXPECT_EQ(shards(parse_layout("striped"), mask, 1).q[0], (Runs{{0, std::int64_t{1} << 31}}));
  for (const Runs& runs : shards(parse_layout("balanced"), mask, 4).q) EXPECT_EQ(runs.size(), 16u);
}

std::vector<std::int64_t> areas(const Mask& mask, const std::vector<Runs>& shards) {
  const Runs keys = {run_of({0, mask.kv_len()})};
  std::vector<std::int64_t> areas;
  areas.reserve(shards.size());
  for (const Runs& runs : shards) areas.push_back(mask.area(runs, keys));
  return areas;
}

/// Area of the rank that has most, relative to the mean.
double imbalance(const Mask& mask, const std::vector<Runs>& shards) {
  const std::vector<std::int64_t> area = areas(mask, shards);
  const auto total =
      static_cast<double>(std::accumulate(area.begin(), area.end(), std::int64_t{0}));
  const auto most = static_cast<double>(*std::max_element(area.begin(), area.end()));
  return most * static_cast<double>(area.size()) / total;
}

TEST(Layout, ZigzagAndBalancedShareCausalWorkEqually) {
  for (const int world : kLayoutWorlds) {
    const std::int64_t n = std::int64_t{1024} * world;
    const Mask mask = causal_mask({n, n}, Align::Start);
    EXPECT_LT(imbalance(mask, shards(parse_layout("zigzag"), mask, world).q), 1.0001) << world;
    EXPECT_LT(imbalance(mask, shards(parse_layout("balanced"), mask, world).q), 1.01) << world;
  }
}

/// Whatever is left over when the tokens are shared out, from 64 a rank on.
TEST(Layout, CausalWorkIsEqualForLengthsThatDoNotDivide) {
  for (const int world : {2, 3, 4, 5, 7, 8, 13, 16, 64}) {
    for (std::int64_t left = 0; left <= std::int64_t{2} * world; ++left) {
      const std::int64_t n = std::int64_t{64} * world + left;
      const Mask mask = causal_mask({n, n}, Align::Start);
      for (const char* layout : {"zigzag", "striped"}) {
        const std::vector<Runs> dealt = shards(parse_layout(layout), mask, world).q;
        EXPECT_LE(imbalance(mask, dealt), 1.02) << layout << ' ' << n << " tokens, " << world;
        for (const Runs& runs : dealt) {
          EXPECT_LE(std::abs(tokens(runs) * world - n), world) << layout << ' ' << n;
        }
      }
    }
  }
}

RC_GTEST_PROP(BalancedLayout, SharesWorkOfPackedDocuments, ()) {
  const int world = *rc::gen::element(2, 3, 4, 5, 8, 13, 16, 64).as("world");
  const std::int64_t share = *rc::gen::element(256, 1000, 4096).as("tokens per rank");
  const auto left_over = *rc::gen::inRange(0, 2 * world).as("tokens left over");
  const auto longest = *rc::gen::inRange<std::int64_t>(share / 64, share).as("longest document");
  std::vector<std::int64_t> documents;
  const std::int64_t all = share * world + left_over;
  std::int64_t left = all;
  while (left > 0) {
    const auto length = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(1, longest + 1));
    documents.push_back(std::min(left, length));
    left -= documents.back();
  }
  const Lengths lengths = {all, all};
  for (const Within& within : {Within(Causal{}), Within(Full{})}) {
    const Mask mask = documents_mask(lengths, documents, within);
    const std::vector<Runs> dealt = shards(parse_layout("balanced"), mask, world).q;
    RC_ASSERT(imbalance(mask, dealt) <= 1.05);
    for (const Runs& runs : dealt) {
      RC_ASSERT(runs.size() == 16u);
      RC_ASSERT(std::abs(tokens(runs) * world - all) <= std::int64_t{16} * world);
    }
  }
}

TEST(BalancedLayout, SharesTokensOfShortSequences) {
  for (const int world : kLayoutWorlds) {
    for (const std::int64_t length : kLengths) {
      const Mask mask = causal_mask({length, length}, Align::Start);
      for (const Runs& runs : shards(parse_layout("balanced"), mask, world).q) {
        if (length > std::int64_t{16} * world) continue;  // Pieces of one token.
        EXPECT_GE(tokens(runs), length / world) << length << " tokens, world " << world;
        EXPECT_LE(tokens(runs), length / world + 1) << length << " tokens, world " << world;
      }
    }
  }
}

TEST(ParseLayout, ReadsWhatItPrints) {
  for (const Layout& layout : all_layouts()) EXPECT_EQ(parse_layout(to_string(layout)), layout);
  EXPECT_EQ(to_string(parse_layout("striped")), "striped:1");
  EXPECT_EQ(parse_layout("zigzag").kind, LayoutKind::Zigzag);
}

TEST(ParseLayout, RefusesWhatItDoesNotUnderstand) {
  const std::string names = "contiguous, zigzag, striped or balanced is required";
  const std::string stripe = " given; a whole number from 1 to 9223372036854775807 is required";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"zig-zag", "layout: 'zig-zag' is not known; " + names + "; nearest is 'zigzag'"},
      {"", "layout: '' is not known; " + names},
      {"striped:0", "layout striped: '0'" + stripe},
      {"striped:-2", "layout striped: '-2'" + stripe},
      {"striped:99999999999999999999", "layout striped: '99999999999999999999'" + stripe},
      {"striped:",
       "layout striped: '' has an empty part; a value is required after ':', ',' and '='"},
      {"striped:2,3",
       "layout striped: 2 values given; exactly one, the tokens of a stripe, is required"},
      {"striped:width=3", "layout striped: key 'width' given; no key is allowed"},
      {"zigzag:2", "layout zigzag: '2' given; no value without a key is allowed"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(([&text = text] { parse_layout(text); }), ThrowsMessage<InvalidArgument>(error))
        << text;
  }
}

}  // namespace
}  // namespace armillary::plan
