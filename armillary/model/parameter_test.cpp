// parameter_test.cpp: shards of every placement cover a parameter once, also where several ranks
// share a grain, and what is refused.
#include "armillary/model/parameter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::model {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Parameter matrix(TpSplit placement, std::int64_t grain = 1) {
  return {.name = "w", .shape = {12, 6}, .placement = placement, .grain = grain, .units = {"a"}};
}

TEST(RangeOf, ShardsCoverTheParameterOnceInWholeGrains) {
  for (const TpSplit placement : {TpSplit::Columns, TpSplit::Rows, TpSplit::Vocabulary}) {
    const std::size_t dim = placement == TpSplit::Rows ? 1 : 0;
    for (const std::int64_t grain : {1, 2, 3}) {
      const Parameter parameter = matrix(placement, grain);
      for (int ranks = 1; ranks <= parameter.shape[dim] / grain; ++ranks) {
        std::int64_t end = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const GlobalRange range = range_of(parameter, rank, ranks);
          EXPECT_EQ(range.whole, parameter.shape);
          EXPECT_EQ(range.begin[dim], end);
          EXPECT_EQ(range.begin[1 - dim], 0);
          EXPECT_EQ(range.size[1 - dim], parameter.shape[1 - dim]);
          EXPECT_EQ(range.size[dim] % grain, 0);
          EXPECT_GT(range.size[dim], 0);
          end += range.size[dim];
        }
        EXPECT_EQ(end, parameter.shape[dim]) << ranks << " ranks, grain " << grain;
      }
    }
  }
  EXPECT_EQ(range_of(matrix(TpSplit::Whole), 2, 99), whole_of({12, 6}));
}

/// Grains of 6 values, 2 of them, that 2 x `sharers` ranks share.
TEST(RangeOf, RanksThatShareAGrainHavePiecesOrCopiesOfIt) {
  Parameter pieces = matrix(TpSplit::Columns, 6);
  pieces.piece = 2;
  Parameter copies = matrix(TpSplit::Columns, 6);
  copies.copied = true;
  for (const int sharers : {1, 2, 3}) {
    std::int64_t end = 0;
    for (int rank = 0; rank < 2 * sharers; ++rank) {
      const GlobalRange piece = range_of(pieces, rank, 2 * sharers);
      EXPECT_EQ(piece.begin[0], end);
      EXPECT_EQ(piece.size[0] % 2, 0);
      EXPECT_GT(piece.size[0], 0);
      end += piece.size[0];
      // The piece lies in the grain that the rank has a copy of.
      const GlobalRange copy = range_of(copies, rank, 2 * sharers);
      EXPECT_EQ(copy.begin[0], rank / sharers * 6);
      EXPECT_EQ(copy.size, (Shape{6, 6}));
      EXPECT_EQ(overlap_of(piece, copy), piece);
    }
    EXPECT_EQ(end, 12);
    EXPECT_EQ(copies_along_tp(copies, 2 * sharers), sharers);
    EXPECT_EQ(copies_along_tp(pieces, 2 * sharers), 1);
  }
}

TEST(CopiesAlongTp, AreTheNeighboursWithTheSameRange) {
  Parameter copies = matrix(TpSplit::Rows, 2);
  copies.copied = true;
  for (const Parameter& parameter : {matrix(TpSplit::Whole), matrix(TpSplit::Columns, 2), copies}) {
    for (const int ranks : {1, 2, 3, 6}) {
      const int count = copies_along_tp(parameter, ranks);
      for (int a = 0; a < ranks; ++a) {
        for (int b = 0; b < ranks; ++b) {
          EXPECT_EQ(range_of(parameter, a, ranks) == range_of(parameter, b, ranks),
                    a / count == b / count)
              << "ranks " << a << " and " << b << " of " << ranks;
        }
      }
    }
  }
}

TEST(RangeOf, RefusesWhatDoesNotDivideWithTheNearest) {
  const auto refused = [](const Parameter& parameter, int ranks, const std::string& text) {
    EXPECT_THAT([&] { range_of(parameter, 0, ranks); }, ThrowsMessage<InvalidArgument>(text));
  };
  refused(matrix(TpSplit::Columns, 5), 2,
          "model: parameter 'w' [12, 6], cut by columns, has grains of 5; a divisor of 12 is "
          "required; nearest: 1");
  refused(
      matrix(TpSplit::Rows, 2), 4,
      "model: parameter 'w' [12, 6], cut by rows, over tp 4; at most tp 3, one of its grains of "
      "2 a rank, is required; nearest: tp 3");
  Parameter shared = matrix(TpSplit::Columns, 6);
  shared.piece = 3;
  refused(
      shared, 3,
      "model: parameter 'w' [12, 6], cut by columns, over tp 3; at most tp 2, one of its grains "
      "of 6 a rank, or a multiple of that up to tp 4 is required; nearest: tp 2");
  refused(
      shared, 6,
      "model: parameter 'w' [12, 6], cut by columns, over tp 6; at most tp 2, one of its grains "
      "of 6 a rank, or a multiple of that up to tp 4 is required; nearest: tp 4");
  shared.piece = 4;
  refused(shared, 4,
          "model: parameter 'w' [12, 6], cut by columns, has pieces of 4; a divisor of its grain 6 "
          "is required; nearest: 6");
  shared.copied = true;
  shared.piece = 0;
  refused(
      shared, 7,
      "model: parameter 'w' [12, 6], cut by columns, over tp 7; at most tp 2, one of its grains "
      "of 6 a rank, or a multiple of that is required; nearest: tp 6");
  Parameter vector = matrix(TpSplit::Rows);
  vector.shape = {12};
  refused(vector, 2,
          "model: parameter 'w' [12], cut by rows, has 1 dims; more than 1 are required");
}

TEST(CheckParameters, RefusesNamesThatStandTwiceAndUnitsThatAreNotDeclared) {
  const std::vector<std::string> units{"embedding", "head"};
  const auto refused = [&](const std::vector<Parameter>& parameters, const std::string& text) {
    EXPECT_THAT([&] { check_parameters(parameters, units, 1); },
                ThrowsMessage<InvalidArgument>(text));
  };
  const Parameter good{.name = "w", .shape = {2}, .units = {"embedding", "head"}};
  check_parameters(std::vector{good}, units, 1);
  const std::vector<std::string> twice{"head", "embedding", "head"};
  EXPECT_THAT([&] { check_parameters(std::vector{good}, twice, 1); },
              ThrowsMessage<InvalidArgument>(
                  "model: two units have the name 'head'; a name each is required"));
  refused({good, good}, "model: two parameters have the name 'w'; a name each is required");
  Parameter other = good;
  other.units = {"embeding"};
  refused({other},
          "model: parameter 'w' is of unit 'embeding', which is not declared; embedding or head is "
          "required; nearest: embedding");
  other.units = {};
  refused({other},
          "model: parameter 'w' is of no unit; at least one of embedding or head is required");
  other = good;
  other.shape = {-1};
  refused({other}, "model: parameter 'w' has the shape [-1]; sizes from 0 are required");
  other = matrix(TpSplit::Columns, 4);
  other.units = {"head"};
  EXPECT_THAT([&] { check_parameters(std::vector{other}, units, 4); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: tp 3")));
}

/// No product of sizes wraps to a small one.
TEST(CheckParameters, RefusesMoreValuesThanCanBeCounted) {
  const std::vector<std::string> units{"head"};
  const auto parameter = [](const std::string& name, const Shape& shape) {
    return Parameter{.name = name, .shape = shape, .units = {"head"}};
  };
  constexpr std::int64_t k32 = std::int64_t{1} << 32U;
  constexpr std::int64_t k55 = std::int64_t{1} << 55U;
  EXPECT_THAT(
      [&] {
        check_parameters(std::vector{parameter("w", {k32, k32})}, units, 1);
      },
      ThrowsMessage<InvalidArgument>("model: parameter 'w' has the shape [4294967296, 4294967296]; "
                                     "fewer than 2^56 values in all parameters are required"));
  check_parameters(std::vector{parameter("w", {k55})}, units, 1);
  EXPECT_THAT(
      [&] {
        check_parameters(std::vector{parameter("w", {k55}), parameter("v", {k55})}, units, 1);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("parameter 'v' has the shape")));
  check_parameters(std::vector{parameter("w", {k32, k32, 0})}, units, 1);
}

}  // namespace
}  // namespace armillary::model
