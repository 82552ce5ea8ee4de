// check_relayout_test.cpp: every relayout is proved and moves what a count cell by cell says; wrong
// shapes and programs are refused by name.
#include "armillary/plan/relayout/check_relayout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/core/testing/expect_error.h"
#include "armillary/plan/program/mutate.h"
#include "armillary/plan/relayout/relayout_program.h"
#include "armillary/plan/relayout/testing/relayout_shapes.h"

namespace armillary::plan::relayout {
namespace {

/// Cells (layer, head, position) that each rank holds, counted without parts and transfers.
using HeldCells = std::vector<std::set<std::tuple<int, int, std::int64_t>>>;
HeldCells held_cells(const CacheLayout& layout, const RelayoutShape& shape) {
  HeldCells cells(static_cast<std::size_t>(shape.world));
  const std::vector<Runs> runs = token_runs(layout);
  for (Rank rank = 0; rank < shape.world; ++rank) {
    const std::optional<CachePlace> place = place_of(layout, rank);
    if (!place) continue;
    const Interval layers = layers_of(layout, shape.cache.layers, place->stage);
    const Heads heads = heads_of(layout, shape.cache.kv_heads, place->head_group);
    for (auto layer = static_cast<int>(layers.begin); layer < layers.end; ++layer) {
      for (int head = heads.begin; head < heads.end; ++head) {
        for (const std::int64_t position :
             positions(runs[static_cast<std::size_t>(place->token_rank)])) {
          cells[static_cast<std::size_t>(rank)].emplace(layer, head, position);
        }
      }
    }
  }
  return cells;
}

std::int64_t bytes_that_move(const RelayoutShape& shape) {
  const HeldCells before = held_cells(shape.from, shape);
  const HeldCells after = held_cells(shape.to, shape);
  std::int64_t cells = 0;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    for (const auto& cell : after[rank]) cells += before[rank].contains(cell) ? 0 : 1;
  }
  return cells * (shape.cache.head_dim + shape.cache.value_dim) * bytes_of(shape.cache.dtype);
}

TEST(CheckRelayout, ProvesEveryPairOfLayouts) {
  for (const std::int64_t tokens : {0, 1, 29}) {
    for (const RelayoutShape& shape : small_relayouts(tokens)) {
      const Relayout relayout = build_relayout(shape);
      EXPECT_EQ(check_relayout(relayout.world(), shape), std::vector<Diagnostic>{})
          << name_of(shape);
      EXPECT_EQ(sent_bytes(relayout.world()), bytes_that_move(shape)) << name_of(shape);
      EXPECT_EQ(relayout.tables.moved_bytes(), bytes_that_move(shape)) << name_of(shape);
    }
  }
}

/// Claim I2: the hand-over of 12 tokens of GPT-2 in 16 bits from one rank to another.
TEST(CheckRelayout, CountsTheBytesOfAHandOver) {
  RelayoutShape shape{
      .cache = {.layers = 12, .kv_heads = 12, .head_dim = 64, .value_dim = 64, .dtype = Dtype::F16},
      .from = one_extent(12, {}, 1),
      .to = one_extent(12, {}, 1),
      .world = 2};
  shape.to.first = 1;
  EXPECT_EQ(sent_bytes(build_relayout(shape).world()), 442'368);
}

/// The same layout moves nothing.
TEST(CheckRelayout, KeepsWhatStays) {
  for (const CacheLayout& layout : small_layouts(29)) {
    const RelayoutShape shape{.cache = kSmallCache, .from = layout, .to = layout, .world = 5};
    EXPECT_EQ(sent_bytes(build_relayout(shape).world()), 0) << to_string(layout);
  }
}

/// Changes of single ops, as the machine lists them. Ops of one step may be exchanged, and a rank
/// may send a copy of what has arrived in its new tile; all others are caught.
TEST(CheckRelayout, CatchesEveryChangeOfAnOp) {
  int caught = 0;
  const std::vector<RelayoutShape> shapes = small_relayouts(13);
  for (std::size_t i = 40; i < shapes.size(); i += 157) {  // Four, of all kinds of layouts.
    const RelayoutShape& shape = shapes[i];
    const Relayout relayout = build_relayout(shape);
    for (const Mutation& mutation : mutations(relayout.world())) {
      std::vector<RankProgram> mutant = relayout.ranks;
      mutate(relayout.measures, mutant, mutation);
      if (!check_relayout(World{relayout.measures, mutant}, shape).empty()) {
        ++caught;
        continue;
      }
      const bool is_as_good =
          mutation.kind == MutationKind::Swapped ||
          (mutation.kind == MutationKind::OtherTile &&
           relayout.ranks[mutation.rank].ops[mutation.op].kind == RelayoutOp::Send);
      EXPECT_TRUE(is_as_good) << name_of(shape) << ": "
                              << plan::to_string(mutation, relayout_words());
    }
  }
  EXPECT_GT(caught, 1000);
}

TEST(CheckRelayout, NamesTheRule) {
  const RelayoutShape shape{.cache = kSmallCache,
                            .from = one_extent(8, {}, 2),
                            .to = one_extent(8, {.kind = LayoutKind::Striped, .stripe = 2}, 2),
                            .world = 2};
  const auto first = [&](const auto& change) {
    Relayout relayout = build_relayout(shape);
    change(relayout.ranks);
    const std::vector<Diagnostic> faults = check_relayout(relayout.world(), shape);
    return faults.empty() ? std::string() : faults[0].rule + ": " + faults[0].text;
  };
  // Rank 0 keeps block 0 of layer 0 first, then receives and sends.
  EXPECT_THAT(first([](auto& ranks) { ranks[0].ops.erase(ranks[0].ops.begin()); }),
              testing::StartsWith("complete: head 0 of block 0 of k"));
  EXPECT_THAT(
      first([](auto& ranks) { ranks[0].ops.insert(ranks[0].ops.begin(), ranks[0].ops[0]); }),
      testing::StartsWith("twice: k{0}"));
  EXPECT_THAT(first([](auto& ranks) { ranks[0].ops[0].step = 1; }), testing::StartsWith("layer: "));
  EXPECT_THAT(first([](auto& ranks) { ranks[0].slots[0].external = false; }),
              testing::StartsWith("caller: the inputs"));
  EXPECT_THAT(
      first([](auto& ranks) { std::swap(ranks[0].ops[0].views[0], ranks[0].ops[0].views[1]); }),
      testing::StartsWith("old: "));
  EXPECT_THAT(first([](auto& ranks) { ranks.pop_back(); }),
              testing::StartsWith("caller: 1 programs"));
}

TEST(CheckRelayout, RefusesShapes) {
  const RelayoutShape good{
      .cache = kSmallCache, .from = one_extent(8, {}, 2), .to = one_extent(8, {}, 4), .world = 4};
  const auto expect = [&](const auto& change, const std::string& text) {
    RelayoutShape shape = good;
    change(shape);
    EXPECT_THAT(error_of([&] { check_shape(shape); }), testing::HasSubstr(text));
  };
  expect([](auto& shape) { shape.world = 3; }, "ranks below 3 are required");
  expect([](auto& shape) { shape.to.head_groups = 3; }, "a multiple of 3 is required; nearest: 3");
  expect(
      [](auto& shape) {
        shape.cache.kv_heads = 3;
        shape.to.head_groups = 4;
      },
      "at most 3, or a multiple of it, is required; nearest: 3");
  expect(
      [](auto& shape) {
        shape.cache.layers = 1;
        shape.to.stages = 2;
      },
      "2 stages of 1 layer; at most 1 is required");
  expect([](auto& shape) { shape.to.extents[0].tokens = 9; },
         "the old layout has 8 tokens and the new one 9 tokens; equally many are required");
  expect([](auto& shape) { shape.from.extents[0].layout.kind = LayoutKind::Balanced; },
         "nearest: zigzag");
  expect([](auto& shape) { shape.from.extents[0].tokens = -1; }, "an extent of -1 tokens");
  expect([](auto& shape) { shape.cache.layers = 0; }, "layers 0 given; at least 1 is required");
}

}  // namespace
}  // namespace armillary::plan::relayout
