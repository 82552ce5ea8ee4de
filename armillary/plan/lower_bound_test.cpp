// lower_bound_test.cpp: the least bytes a rank must receive: equal to closed forms where there are
// some, and never above any assignment of pairs on small problems or any strategy of the registry.
#include "armillary/plan/lower_bound.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>

#include "armillary/plan/testing/every_strategy.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

/// The bound in words per token, as closed forms give it.
double words_per_token(int world, int heads, int kv_heads) {
  constexpr std::int64_t kTokens = 65536;
  const Problem problem{.world = world,
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = 128,
                        .value_dim = 128,
                        .dtype = Dtype::Bf16,
                        .mask = full_mask({kTokens, kTokens})};
  return forward_lower_bound(problem) / 2 / kTokens;
}

TEST(LowerBound, IsThatOfTheClosedForms) {
  EXPECT_NEAR(words_per_token(8, 32, 32), 1664, 0.01);
  EXPECT_NEAR(words_per_token(16, 32, 32), 929.065, 0.01);
  EXPECT_NEAR(words_per_token(64, 32, 32), 351.288, 0.01);
  EXPECT_NEAR(words_per_token(8, 32, 8), 1008, 0.01);
  EXPECT_NEAR(words_per_token(16, 32, 8), 660, 0.01);
  EXPECT_NEAR(words_per_token(64, 32, 8), 339.555, 0.01);
  EXPECT_NEAR(words_per_token(16, 8, 1), 218, 0.5);
}

TEST(LowerBound, OfFewRanksIsARing) {
  EXPECT_EQ(words_per_token(1, 32, 8), 0);
  EXPECT_NEAR(words_per_token(2, 32, 1), 2 * 128 * 0.5, 1e-9);
}

/// Query heads and KV heads of a problem.
struct HeadCounts {
  int q = 1;
  int kv = 1;
};

/// A row costs two words of 2 bytes (Q and Out), and so does a column (K and V).
Problem bound_problem(int world, std::int64_t length, const std::string& mask,
                      const std::string& layout, HeadCounts heads = {}) {
  return {.world = world,
          .heads = heads.q,
          .kv_heads = heads.kv,
          .head_dim = 1,
          .value_dim = 1,
          .dtype = Dtype::Bf16,
          .mask = parse_mask(mask, {length, length}),
          .layout = parse_layout(layout)};
}
constexpr double kBytesPerRow = 4;

/// Mean number of rows and columns that a rank receives.
double least_received(const Problem& problem, const std::vector<double>& pairs) {
  return ForwardBound(problem).bytes(pairs) / kBytesPerRow;
}

// The bound of any mask is within 0.4 % of what its model allows.
TEST(LowerBound, OfMasksThatHidePairs) {
  // zigzag, 8 heads to a KV head: a column is 8 rows at once, so the best is a ring. Rank 0 has
  // pieces 0 and 3 and must see pieces 1 and 2, rank 1 has those and must see piece 0.
  const Problem ring = bound_problem(2, 4096, "causal", "zigzag", {8, 1});
  EXPECT_NEAR(forward_lower_bound(ring) / kBytesPerRow, (2048 + 1024) / 2., 2);
  // Two documents on two ranks: nothing, or half of each where they are split.
  EXPECT_EQ(forward_lower_bound(bound_problem(2, 64, "documents:32,32", "contiguous")), 0);
  // Rank 0 owns one column of 4 and row 3: its share is the 5 pairs of rows 0 and 3, for which it
  // needs keys 1 and 2. Rank 1 owns rows 1 and 2, and needs key 0.
  const Problem four = bound_problem(2, 4, "causal", "zigzag");
  EXPECT_NEAR(least_received(four, {5, 5}), 1.5, 0.01);
  // All 10 pairs on rank 0: rows 1 and 2 as well.
  EXPECT_NEAR(least_received(four, {10, 0}), 2, 0.01);
  EXPECT_NEAR(least_received(four, {3, 3}), 0, 0) << "own tokens with each other";
  // A window of 5 keys before a query's own: rank 1 sees 5, 4, 3, 2 and 1 pairs of the 5 last keys
  // of rank 0. With 16 query heads these columns are cheaper than any row.
  const Problem window = bound_problem(2, 64, "window:left=5,right=0", "contiguous", {16, 1});
  const double own = 16 * (32 * 6 - 15);
  EXPECT_NEAR(least_received(window, {own, own + 16 * 15.}), 5 / 2., 0.01);
  EXPECT_NEAR(least_received(window, {own, own + 16 * 9.}), 2 / 2., 0.01) << "two keys, 5 and 4";
}

// With many query heads to a KV head the halo is the best there is, but for its last few columns.
TEST(LowerBound, OfAWindowIsItsHaloHoweverLongTheSequence) {
  constexpr std::int64_t kHalo = 1023;
  for (const std::int64_t length : {std::int64_t{1} << 14, std::int64_t{1} << 20}) {
    const Problem problem =
        bound_problem(8, length, "window:left=1023,right=0", "contiguous", {1024, 1});
    const Shards owned = shards(problem.layout, problem.mask, problem.world);
    std::vector<double> pairs;  // each rank attends to what its queries see
    pairs.reserve(owned.q.size());
    for (const Runs& q : owned.q) {
      pairs.push_back(1024. * static_cast<double>(problem.mask.area(q, {run_of({0, length})})));
    }
    EXPECT_NEAR(least_received(problem, pairs), kHalo * 7 / 8., kHalo * 0.03) << length;
  }
}

TEST(LowerBound, SaysWhatItIsOf) {
  EXPECT_EQ(ForwardBound(bound_problem(2, 8, "full", "zigzag")).name(), "full mask");
  EXPECT_EQ(ForwardBound(bound_problem(2, 8, "causal", "zigzag")).name(), "any mask");
}

/// Every way to give the visible pairs of a small problem to ranks.
class AllAssignments {
 public:
  explicit AllAssignments(const Problem& problem)
      : problem_(problem), own_(problem.world), rank_of_(0) {
    const Shards owned = shards(problem.layout, problem.mask, problem.world);
    for (Rank rank = 0; rank < problem.world; ++rank) {
      for (const std::int64_t token : positions(owned.q[rank])) own_[rank] |= 1U << token;
    }
    for (int head = 0; head < problem.heads; ++head) {
      for (int q = 0; q < problem.mask.q_len(); ++q) {
        for (int k = 0; k < problem.mask.kv_len(); ++k) {
          if (problem.mask.visible(q, k)) pairs_.push_back({head, q, k});
        }
      }
    }
    rank_of_.assign(pairs_.size(), 0);
  }

  /// Fewest rows and columns received by all ranks together, by pairs of each rank.
  std::map<std::vector<double>, int> least() {
    std::map<std::vector<double>, int> least;
    do {
      std::vector<double> work(problem_.world);
      for (const Rank rank : rank_of_) ++work[rank];
      const int now = received();
      const auto [at, is_new] = least.try_emplace(work, now);
      if (!is_new) at->second = std::min(at->second, now);
    } while (next());
    return least;
  }

 private:
  struct Pair {
    int head, q, k;
  };

  bool next() {
    for (Rank& rank : rank_of_) {
      if (++rank < problem_.world) return true;
      rank = 0;
    }
    return false;
  }

  int received() const {
    constexpr int kMost = 4;  // ranks, and heads
    unsigned rows[kMost][kMost] = {};
    unsigned columns[kMost][kMost] = {};
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      rows[rank_of_[i]][pairs_[i].head] |= 1U << pairs_[i].q;
      columns[rank_of_[i]][pairs_[i].head / problem_.group_size()] |= 1U << pairs_[i].k;
    }
    int sum = 0;
    for (Rank rank = 0; rank < problem_.world; ++rank) {
      for (int head = 0; head < problem_.heads; ++head) {
        sum += std::popcount(rows[rank][head] & ~own_[rank]);
        sum += std::popcount(columns[rank][head] & ~own_[rank]);
      }
    }
    return sum;
  }

  const Problem& problem_;
  std::vector<unsigned> own_;
  std::vector<Pair> pairs_;
  std::vector<Rank> rank_of_;
};

TEST(LowerBound, IsNotAboveAnyAssignmentOfPairsToRanks) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] about counts, not about memory";
  struct Case {
    int world;
    std::int64_t length;
    const char* mask;
    int heads = 1;
    int kv_heads = 1;
  };
  int met = 0;
  for (const Case& one : std::initializer_list<Case>{{2, 4, "causal"},
                                                     {2, 4, "full"},
                                                     {2, 4, "window:left=1,right=1"},
                                                     {2, 4, "prefix:2"},
                                                     {2, 4, "block_causal:2"},
                                                     {2, 6, "documents:2,4"},
                                                     {2, 5, "documents:3,2,within=full"},
                                                     {2, 3, "causal", 2, 1},
                                                     {2, 3, "causal", 2, 2},
                                                     {2, 2, "full", 2, 2},
                                                     {2, 2, "full", 3, 1},
                                                     {2, 5, "bands:0-2/2-5/..;3-5/0-2/-3..-2"},
                                                     {3, 3, "full"},
                                                     {3, 4, "window:left=1,right=0"},
                                                     {3, 4, "causal"},
                                                     {3, 3, "window:left=1,right=0", 2, 1},
                                                     {4, 4, "window:left=1,right=0"},
                                                     {3, 2, "full"},  // a rank owns nothing
                                                     {3, 2, "full", 2, 2},
                                                     {4, 4, "documents:2,2"},
                                                     {4, 4, "bands:0-4/0-2/.."}}) {
    for (const char* layout : {"contiguous", "zigzag", "striped", "balanced"}) {
      const Problem problem =
          bound_problem(one.world, one.length, one.mask, layout, {one.heads, one.kv_heads});
      ForwardBound bound(problem);
      for (const auto& [work, received] : AllAssignments(problem).least()) {
        const double least = bound.bytes(work) / kBytesPerRow * one.world;
        EXPECT_LE(least, received + 1e-9)
            << one.mask << ' ' << layout << " world " << one.world << ", length " << one.length
            << ", heads " << one.heads << '/' << one.kv_heads << ": "
            << fmt::format("pairs {}", work);
        if (received > 0 && least > received - 0.02) ++met;
      }
    }
  }
  EXPECT_GT(met, 500) << "the bound is reached often";
}

/// Sent bytes over the bound, for every strategy.
void expect_bounded(const Problem& problem, const std::string& what) {
  ForwardBound bound(problem);
  for (const std::string& strategy : every_strategy(problem)) {
    const Plan plan = make_plan(problem, parse_strategy(strategy), Pass::Forward);
    double sent_bytes = 0;
    std::vector<double> work;
    for (const RankProgram& program : plan.ranks) {
      const Traffic one = traffic(problem, plan.blocks, program);
      sent_bytes += static_cast<double>(one.sent_bytes);
      work.push_back(static_cast<double>(one.visible_pairs));
    }
    const double least = bound.bytes(work);
    EXPECT_GE(sent_bytes / problem.world, least * (1 - 1e-9)) << strategy << ' ' << what;
  }
}

TEST(LowerBound, IsNotAboveAnyStrategy) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] about counts, not about memory";
  unsigned sample = 0;
  for (const char* mask : {"full", "causal", "window:left=13,right=0", "window:left=3,right=40",
                           "prefix:30", "documents:40,7,70,11", "documents:64,64,within=full",
                           "block_causal:24", "bands:0-40/60-128/..;70-128/0-30/-90..-50"}) {
    for (const char* layout : {"contiguous", "zigzag", "striped", "striped:5", "balanced"}) {
      for (const int world : {2, 3, 4, 5, 8, 16}) {
        for (const auto& [heads, kv_heads] :
             {std::pair(8, 8), std::pair(8, 2), std::pair(8, 1), std::pair(6, 3)}) {
          if (sample++ % 23 != 0) continue;
          Problem problem = bound_problem(world, 128, mask, layout, {heads, kv_heads});
          problem.batch = 1 + world % 2;
          problem.transfer_dtype = TransferDtype::Input;
          expect_bounded(problem, fmt::format("{} {} world {} heads {}/{}", mask, layout, world,
                                              heads, kv_heads));
        }
      }
    }
  }
}

}  // namespace
}  // namespace armillary::plan
