// papers_table_test.cpp: the table of docs/papers.md that holds steps, kernel calls and live blocks
// of plans beside those of the papers' algorithms.
//
// The costs of the papers are counted here from the lines of their algorithms, not from strategies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "armillary/plan/testing/paper_plan.h"

namespace armillary::golden {
namespace {

/// Live: blocks of one rank beside its own tokens, and sums.
struct RowCounts {
  int steps = 0;
  int calls = 0;
  int live_q = 0;
  int live_kv = 0;
  int live_sums = 0;
};

constexpr int kWorld = 16;

/// TokenRing, algorithm 1, of n ranks in each of M rounds, with K, V that go to the next node
/// meanwhile (section 3.3.3): an iteration for each block of queries in each round, and line 11. Q
/// that is attended to and Q that comes; K, V likewise. Sums: own, made, sent and received.
RowCounts tokenring(int nodes) {
  const int n = kWorld / nodes;
  return {.steps = nodes * n + 1,
          .calls = nodes * n,
          .live_q = std::min(n - 1, 2),
          .live_kv = std::min(nodes - 1, 2),
          .live_sums = n == 2 ? 3 : 4};
}

/// Attention2D, algorithms 4 to 6: transpose, R of algorithm 5, C - 1 of algorithm 6 and its last
/// wait. K_g of the column; Q_c and Q_n; sums: own (line 5), made, sent and received.
RowCounts attention2d(int rows) {
  const int columns = kWorld / rows;
  return {.steps = 1 + rows + columns - 1 + 1,
          .calls = rows + columns - 1,
          .live_q = std::min(columns - 1, 2),
          .live_kv = rows,
          .live_sums = std::min(columns + 1, 4)};
}

/// StarTrail, algorithm 1: Q, K and V gathered one after the other (line 1), P / C^2 iterations and
/// the reduce-scatter (line 11). Q of the team; K, V gathered, current and next (without a ring
/// gathered and current); O of the team and the parts that come.
RowCounts startrail(int c) {
  const int ring = kWorld / (c * c);
  return {.steps = 3 + ring + 1,
          .calls = ring,
          .live_q = c,
          .live_kv = (ring == 1 ? 2 : 3) * c,
          .live_sums = c + c - 1};
}

RowCounts counts_of(const plan::Plan& plan) {
  const auto live = [&](plan::Tensor tensor) {
    return static_cast<int>(live_blocks_of(plan, tensor));
  };
  const std::vector<int> calls = calls_of(plan);
  return {.steps = steps_of(plan),
          .calls = *std::max_element(calls.begin(), calls.end()),
          .live_q = live(plan::Tensor::Q),
          .live_kv = live(plan::Tensor::K),
          .live_sums = live(plan::Tensor::Out)};
}

/// `5`, or where the paper has another number `5 (4)`.
std::string cell(int of_plan, int of_paper) {
  return of_plan == of_paper ? fmt::format("{}", of_plan)
                             : fmt::format("{} ({})", of_plan, of_paper);
}

std::string row(const std::string& strategy, const RowCounts& paper) {
  const RowCounts plan = counts_of(plan::paper_plan(kWorld, strategy, plan::Pass::Forward));
  return fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", strategy, cell(plan.steps, paper.steps),
                     cell(plan.calls, paper.calls), cell(plan.live_q, paper.live_q),
                     cell(plan.live_kv, paper.live_kv), cell(plan.live_sums, paper.live_sums));
}

TEST(PapersTable, IsWhatPlansAndAlgorithmsHave) {
  const std::string rows = row("tokenring", tokenring(1)) + row("tokenring:nodes=2", tokenring(2)) +
                           row("tokenring:nodes=4", tokenring(4)) +
                           row("tokenring:nodes=8", tokenring(8)) +
                           row("tokenring:nodes=2,tiles=stay", tokenring(2)) +
                           row("tokenring:nodes=4,tiles=stay", tokenring(4)) +
                           row("tokenring:nodes=8,tiles=stay", tokenring(8)) +
                           row("attention2d:overlap=true,rows=4", attention2d(4)) +
                           row("attention2d:overlap=true,rows=2", attention2d(2)) +
                           row("startrail:c=2", startrail(2)) + row("startrail:c=4", startrail(4));
  std::ifstream file(ARMILLARY_SOURCE_DIR "/docs/papers.md", std::ios::binary);
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(document.find(rows), std::string::npos) << "docs/papers.md should have\n" << rows;
}

}  // namespace
}  // namespace armillary::golden
