// transfer_dtype_test.cpp: sums travel in the problem's transfer dtype, in no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

Plan plan_with(Dtype dtype, TransferDtype transfer_dtype, const std::string& strategy, Pass pass) {
  Problem problem = small_problem(2);
  problem.dtype = dtype;
  problem.transfer_dtype = transfer_dtype;
  return make_plan(problem, parse_strategy(strategy), pass);
}

/// The tiles of a sum of this tensor at both ends of its message.
struct TravellingSum {
  int sent_tile = -1;      ///< A tile of rank 0.
  int received_tile = -1;  ///< A tile of rank 1.
};

TravellingSum sum_of(Plan& plan, Tensor tensor) {
  const auto moved = [&](Rank rank, OpKind kind) {
    for (const Op& op : ops(plan, rank)) {
      const Tile& shown = tile(plan, rank, op.views.front().tile);
      if (op.kind == kind && shown.tensor == tensor && shown.partial) return op.views.front().tile;
    }
    return -1;
  };
  return {moved(0, OpKind::Send), moved(1, OpKind::Recv)};
}

/// Both ends agree on the other dtype, and there is room for it.
void flip(Plan& plan, Tensor tensor) {
  const TravellingSum sum = sum_of(plan, tensor);
  for (const Rank rank : {0, 1}) {
    Tile& tile = plan.ranks[rank].tiles[rank == 0 ? sum.sent_tile : sum.received_tile];
    tile.narrow = !tile.narrow;
    Slot& slot = plan.ranks[rank].slots[tile.slot];
    slot.bytes = std::max(slot.bytes, bytes_of(plan.problem, plan.blocks, tile));
  }
}

std::string first_of(const Plan& plan) {
  const std::vector<Diagnostic> diagnostics = verify(plan);
  return diagnostics.empty() ? "exact" : diagnostics[0].rule + ": " + diagnostics[0].text;
}

TEST(VerifyTransferDtype, ASumTravelsInTheInputDtypeWhereTheProblemAsksForIt) {
  for (const auto& [tensor, name] : {std::pair(Tensor::DK, "dk"), std::pair(Tensor::DV, "dv")}) {
    Plan plan = plan_with(Dtype::Bf16, TransferDtype::Input, "ring", Pass::Backward);
    ASSERT_TRUE(tile(plan, 0, sum_of(plan, tensor).sent_tile).narrow);
    ASSERT_EQ(first_of(plan), "exact");
    flip(plan, tensor);
    EXPECT_EQ(first_of(plan),
              std::string("well_formed: partial ") + name +
                  "{1} heads 0-2 travels in fp32; under transfer dtype input it travels in "
                  "bf16");
  }
  Plan out = plan_with(Dtype::F16, TransferDtype::Input, "tokenring", Pass::Forward);
  ASSERT_TRUE(tile(out, 0, sum_of(out, Tensor::Out).sent_tile).narrow);
  ASSERT_EQ(first_of(out), "exact");
  flip(out, Tensor::Out);
  EXPECT_EQ(first_of(out),
            "well_formed: partial out{1} heads 0-4 travels in fp32; under transfer dtype input it "
            "travels in fp16");
}

TEST(VerifyTransferDtype, ASumTravelsInTheAccumulatorWhereTheProblemAsksForIt) {
  for (const auto& [dtype, transfer_dtype] :
       {std::pair(Dtype::Bf16, TransferDtype::Accumulator),
        std::pair(Dtype::F32, TransferDtype::Input), std::pair(Dtype::F64, TransferDtype::Input)}) {
    Plan plan = plan_with(dtype, transfer_dtype, "ring", Pass::Backward);
    ASSERT_FALSE(tile(plan, 0, sum_of(plan, Tensor::DK).sent_tile).narrow) << to_string(dtype);
    ASSERT_EQ(first_of(plan), "exact") << to_string(dtype);
    flip(plan, Tensor::DK);
    const int tile_id = sum_of(plan, Tensor::DK).sent_tile;
    EXPECT_EQ(first_of(plan),
              "well_formed: tile " + std::to_string(tile_id) + ": dk cannot be narrow")
        << to_string(dtype);
  }
}

TEST(VerifyTransferDtype, LogSumExpsTravelInTheAccumulator) {
  Plan plan = plan_with(Dtype::Bf16, TransferDtype::Input, "tokenring", Pass::Forward);
  const int tile_id = sum_of(plan, Tensor::Lse).sent_tile;
  ASSERT_FALSE(tile(plan, 0, tile_id).narrow);
  flip(plan, Tensor::Lse);
  EXPECT_EQ(first_of(plan),
            "well_formed: tile " + std::to_string(tile_id) + ": lse cannot be narrow");
}

}  // namespace
}  // namespace armillary::plan
