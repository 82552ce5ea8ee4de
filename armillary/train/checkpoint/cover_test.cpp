// cover_test.cpp: shards that are the whole tensor, and every way in which they are not.
#include "armillary/train/checkpoint/cover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

using testing::ThrowsMessage;

/// A shard of a [6, 3] tensor in a file of its own.
ManifestTensor shard(const char* file, model::Shape begin, model::Shape size,
                     model::Shape whole = {6, 3}) {
  return {.info = {"w", io::TensorDtype::F32, size},
          .range = {.whole = std::move(whole), .begin = std::move(begin), .size = size},
          .file = file};
}

void check(const std::vector<ManifestTensor>& shards) {
  std::vector<const ManifestTensor*> all;
  all.reserve(shards.size());
  for (const ManifestTensor& one : shards) all.push_back(&one);
  check_cover("c", all);
}

void refused(const std::vector<ManifestTensor>& shards, const std::string& text) {
  EXPECT_THAT([&] { check(shards); }, ThrowsMessage<IoError>("checkpoint: c" + text));
}

TEST(CheckCover, TakesShardsOfAnyCutInAnyOrder) {
  check({shard("a", {0, 0}, {6, 3})});
  check({shard("b", {4, 0}, {2, 3}), shard("a", {0, 0}, {4, 3})});
  // Rows and columns, and ranks that hold nothing.
  check({shard("a", {0, 0}, {4, 1}), shard("b", {0, 1}, {4, 2}), shard("c", {4, 0}, {2, 3}),
         shard("d", {4, 0}, {0, 3}), shard("e", {4, 0}, {0, 3})});
  check({shard("a", {}, {}, {})});
  check({shard("a", {0}, {0}, {0}), shard("b", {0}, {0}, {0})});
}

TEST(CheckCover, AShardThatStandsTwiceIsRefused) {
  refused({shard("a", {0, 0}, {3, 3}), shard("b", {0, 0}, {3, 3})},
          ": elements [0, 0] to [3, 3] of tensor 'w' are in a and in b, the same shard; each once "
          "is required");
  refused({shard("a", {}, {}, {}), shard("b", {}, {}, {})},
          ": elements [] to [] of tensor 'w' are in a and in b, the same shard; each once is "
          "required");
}

TEST(CheckCover, RangesThatOverlapAreRefused) {
  refused({shard("a", {0, 0}, {4, 3}), shard("b", {3, 0}, {3, 3})},
          ": elements [3, 0] to [4, 3] of tensor 'w' are in a and in b; each once is required");
  // The first shard covers the last one, and not the one between them.
  refused({shard("a", {0, 0}, {6, 1}), shard("b", {0, 1}, {6, 2}), shard("c", {5, 0}, {1, 1})},
          ": elements [5, 0] to [6, 1] of tensor 'w' are in a and in c; each once is required");
}

TEST(CheckCover, ARangeThatIsMissingIsRefused) {
  refused({shard("a", {0, 0}, {3, 3}), shard("b", {3, 0}, {2, 3})},
          " has 15 of 18 elements of tensor 'w'; each once is required");
  refused({shard("a", {0, 0}, {0, 3})},
          " has 0 of 18 elements of tensor 'w'; each once is required");
}

TEST(CheckCover, ShardsOfTwoTensorsAreRefused) {
  refused({shard("a", {0, 0}, {3, 3}), shard("b", {3, 0}, {3, 3}, {7, 3})},
          ": tensor 'w' is F32 [6,3] in a and F32 [7,3] in b; one of them is required");
}

}  // namespace
}  // namespace armillary::train
