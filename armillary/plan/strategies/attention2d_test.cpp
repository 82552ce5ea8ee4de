// attention2d_test.cpp: plans of `attention2d` against the paper's algorithms, written out: which
// rank sends whose block to whom in which step, which blocks meet, and in how many kernel calls.
//
// Tiles go to the next row and column here, and to the one before in the paper: a mirror image.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/plan/testing/paper_plan.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

/// R x C ranks, numbered down the columns. K, V of a rank go to the place whose number by rows is
/// that rank; keys_at(i, j) is the owner of the K, V held at (i, j).
struct RankGrid {
  int rows;
  int columns;
  int world() const { return rows * columns; }
  Rank at(int i, int j) const {
    return (j % columns + columns) % columns * rows + (i % rows + rows) % rows;
  }
  Rank keys_at(int i, int j) const { return (i % rows + rows) % rows * columns + j; }
  std::string key() const { return "rows=" + std::to_string(rows); }
};

constexpr RankGrid kShapes[] = {{1, 3}, {2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}, {3, 3},
                                {2, 5}, {5, 3}, {4, 4}, {2, 8}, {8, 2}, {4, 5}};

/// Algorithm 5, from step `start` on: K, V walk down the column, and the rank's own queries attend
/// them as they arrive.
void gather_and_compute(Written& written, const RankGrid& shape, int i, int j, int start) {
  const Rank me = shape.at(i, j);
  for (int t = 0; t < shape.rows; ++t) {
    const Rank keys = shape.keys_at(i - t, j);
    written.meetings.insert({start + t, me, me, keys});
    if (t == shape.rows - 1) break;
    written.send(start + t, me, shape.at(i + 1, j), {keys}, {Tensor::K, Tensor::V});
  }
}

/// Algorithms 4, 5 and 6: the first queries leave at the start (line 4). When all keys are there,
/// each block of queries attends them all, and its partial result follows it.
Written forward(const RankGrid& shape) {
  Written written;
  const int start = 1;
  const int gathered = start + shape.rows - 1;
  for (int i = 0; i < shape.rows; ++i) {
    for (int j = 0; j < shape.columns; ++j) {
      const Rank me = shape.at(i, j);
      const Rank next = shape.at(i, j + 1);
      const Rank mine = shape.keys_at(i, j);
      written.send(0, mine, me, {mine}, {Tensor::K, Tensor::V});
      gather_and_compute(written, shape, i, j, start);
      if (shape.columns > 1) written.send(start, me, next, {me}, {Tensor::Q});
      for (int t = 1; t < shape.columns; ++t) {
        const Rank queries = shape.at(i, j - t);
        for (int x = 0; x < shape.rows; ++x) {
          written.meetings.insert({gathered + t, me, queries, shape.keys_at(x, j)});
        }
        if (t < shape.columns - 1) written.send(gathered + t, me, next, {queries}, {Tensor::Q});
        written.send(gathered + t + 1, me, next, {queries}, {Tensor::Out, Tensor::Lse});
      }
    }
  }
  return written;
}

/// Algorithms 8 to 11: like forward, but without a transpose at the start. Delta is computed before
/// queries leave. The last block of queries attends the keys block by block, in the order in which
/// the sums of dK, dV leave.
Written backward(const RankGrid& shape) {
  Written written;
  const int gathered = std::max(1, shape.rows - 1);
  const int last = gathered + shape.columns - 1;
  const std::vector<Tensor> walking{Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta};
  for (int i = 0; i < shape.rows; ++i) {
    for (int j = 0; j < shape.columns; ++j) {
      const Rank me = shape.at(i, j);
      const Rank next = shape.at(i, j + 1);
      gather_and_compute(written, shape, i, j, 0);
      written.send(1, me, next, {me}, walking);
      for (int t = 1; t < shape.columns; ++t) {
        const Rank queries = shape.at(i, j - t);
        if (t < shape.columns - 1) written.send(gathered + t, me, next, {queries}, walking);
        const int met = t < shape.columns - 1 ? gathered + t : last + shape.rows - 1;
        written.send(met + 1, me, next, {queries}, {Tensor::DQ});
        for (int x = 0; x < shape.rows; ++x) {
          const int delay = (x + shape.rows - 1) % shape.rows;
          const int step = t < shape.columns - 1 ? gathered + t : last + delay;
          written.meetings.insert({step, me, queries, shape.keys_at(i - x, j)});
        }
      }
      for (int x = 1; x < shape.rows; ++x) {
        written.send(last + x, me, shape.at(i + 1, j), {shape.keys_at(i - x, j)},
                     {Tensor::DK, Tensor::DV});
      }
      const Rank mine = shape.keys_at(i, j);
      written.send(last + shape.rows, me, mine, {mine}, {Tensor::DK, Tensor::DV});
    }
  }
  return written;
}

Plan overlapped(const RankGrid& shape, Pass pass, const std::string& mask = "full",
                const std::string& layout = "striped") {
  return paper_plan(shape.world(), "attention2d:overlap=true," + shape.key(), pass, mask, layout);
}

TEST(Attention2d, OverlappedIsAlgorithms4To6) {
  for (const RankGrid& shape : kShapes) {
    SCOPED_TRACE(shape.key() + ", world " + std::to_string(shape.world()));
    expect_as_written(overlapped(shape, Pass::Forward), forward(shape));
  }
}

TEST(Attention2d, OverlappedBackwardIsAlgorithms8To11) {
  for (const RankGrid& shape : kShapes) {
    SCOPED_TRACE(shape.key() + ", world " + std::to_string(shape.world()));
    expect_as_written(overlapped(shape, Pass::Backward), backward(shape));
  }
}

/// R calls of Algorithm 5 and C - 1 of Algorithm 6: 7 on 4 x 4 ranks. In backward the last of these
/// is R calls (Algorithm 11). Without overlap there is one call (Algorithm 1, line 5; Algorithm 3).
TEST(Attention2d, Calls) {
  for (const RankGrid& shape : kShapes) {
    SCOPED_TRACE(shape.key() + ", world " + std::to_string(shape.world()));
    const auto each = [&](int calls) { return std::vector(shape.world(), calls); };
    EXPECT_EQ(calls_of(overlapped(shape, Pass::Forward)), each(shape.rows + shape.columns - 1));
    EXPECT_EQ(calls_of(overlapped(shape, Pass::Backward)),
              each(shape.rows + shape.columns - 2 + shape.rows));
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      EXPECT_EQ(calls_of(paper_plan(shape.world(), "attention2d:" + shape.key(), pass)), each(1));
    }
  }
}

/// Section 4.1: the mask of a call has steps instead of being a triangle. Kernels here accept that,
/// so a mask does not add calls. Documents are left out in backward: gradients of own keys that the
/// rank's row does not see lie between those of other keys and split a call.
TEST(Attention2d, CallsAreNotMoreUnderAMask) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] about counts, not about memory";
  for (const RankGrid& shape : kShapes) {
    const std::string rest = std::to_string(8 * shape.world() - 12);
    for (const char* layout : {"contiguous", "zigzag", "striped", "striped:2", "balanced"}) {
      for (const std::string& mask : {std::string("causal"), std::string("window:left=9,right=4"),
                                      std::string("window:left=5,right=0"), std::string("prefix:5"),
                                      std::string("block_causal:6"), "documents:7,1,4," + rest}) {
        SCOPED_TRACE(shape.key() + ", world " + std::to_string(shape.world()) + ", " + layout +
                     ", " + mask);
        const auto most = [&](Pass pass) {
          const std::vector<int> calls = calls_of(overlapped(shape, pass, mask, layout));
          return *std::max_element(calls.begin(), calls.end());
        };
        EXPECT_LE(most(Pass::Forward), shape.rows + shape.columns - 1);
        if (mask.starts_with("documents")) continue;
        EXPECT_LE(most(Pass::Backward), 2 * shape.rows + shape.columns - 2);
      }
    }
  }
}

/// Blocks in memory, without the rank's own inputs: the gathered keys; two blocks of queries
/// (section 3.4); four sums: the rank's own, one being computed, one that leaves and one that
/// arrives.
TEST(Attention2d, LiveBlocks) {
  for (const RankGrid& shape : kShapes) {
    SCOPED_TRACE(shape.key() + ", world " + std::to_string(shape.world()));
    const Plan plan = overlapped(shape, Pass::Forward);
    EXPECT_EQ(live_blocks_of(plan, Tensor::K), shape.rows == 1 ? 0 : shape.rows);
    EXPECT_EQ(live_blocks_of(plan, Tensor::Q), std::min(shape.columns - 1, 2));
    EXPECT_EQ(live_blocks_of(plan, Tensor::Out), std::min(shape.columns + 1, 4));
    const Plan gathered = paper_plan(shape.world(), "attention2d:" + shape.key(), Pass::Forward);
    EXPECT_EQ(live_blocks_of(gathered, Tensor::K), shape.rows == 1 ? 0 : shape.rows);
    EXPECT_EQ(live_blocks_of(gathered, Tensor::Q), shape.columns);
  }
}

/// One step to transpose, R for the rank's own queries, C - 1 for the others, one for the last sum.
TEST(Attention2d, Steps) {
  for (const RankGrid& shape : kShapes) {
    SCOPED_TRACE(shape.key() + ", world " + std::to_string(shape.world()));
    EXPECT_EQ(steps_of(overlapped(shape, Pass::Forward)), 1 + shape.rows + shape.columns - 1 + 1);
  }
}

}  // namespace
}  // namespace armillary::plan
