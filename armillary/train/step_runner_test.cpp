// step_runner_test.cpp: programs of steps run op by op on stores of ranks, against one rank, with
// the bytes that the programs say.
#include "armillary/train/step_runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/words.h"
#include "armillary/train/step_shape.h"
#include "armillary/train/testing/step_rank.h"
#include "armillary/train/testing/three_units.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// One more, without parameters.
class FourUnits : public ThreeUnits {
 public:
  std::vector<std::string> units() const override { return {"first", "middle", "plain", "last"}; }
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs& inputs) override {
    if (unit == 2) return x.tanh();
    return ThreeUnits::run(unit == 3 ? 2 : unit, weights, x, inputs);
  }
};

at::Tensor part_of(const at::Tensor& whole, const model::GlobalRange& range) {
  at::Tensor part = whole;
  for (std::size_t dim = 0; dim < range.size.size(); ++dim) {
    part = part.narrow(static_cast<std::int64_t>(dim), range.begin[dim], range.size[dim]);
  }
  return part;
}

plan::step::StepBytes program_bytes(const StepRank& rank) {
  return plan::step::bytes_of(rank.step().tables, rank.step().program);
}

/// Expects the gradients of a rank to be `factor` times the parts of those of one rank.
void expect_gradients(const StepRank& rank, const StepRank& one, double factor) {
  const std::vector<Piece>& pieces = rank.store().pieces();
  const std::vector<Piece>& wholes = one.store().pieces();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::size_t j = 0; j < wholes.size(); ++j) {
      if (wholes[j].name != pieces[i].name) continue;
      const at::Tensor whole = part_of(one.gradients()[j], pieces[i].range) * factor;
      EXPECT_TRUE(rank.gradients()[i].allclose(whole, 1e-5, 1e-6)) << pieces[i].name;
    }
  }
}

TEST(StepRunner, GivesTheGradientsOfOneRankAndTakesTheBytesOfItsProgram) {
  std::vector<StepCase> cases;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int passes : {1, 3}) {
      cases.push_back({.zero = zero, .passes = passes});
      cases.push_back({.mesh = {.dp = 3}, .zero = zero, .passes = passes});
      cases.push_back({.mesh = {.dp = 4}, .copies = 2, .zero = zero, .passes = passes});
      cases.push_back({.mesh = {.dp = 2}, .copies = 2, .zero = zero, .passes = passes});
    }
  }
  cases.push_back({.mesh = {.dp = 3}, .zero = 3, .passes = 2, .reshard = false});
  comm::run_ranks(1, [&](comm::Communicator& alone) {
    FourUnits model;
    StepRank one(alone, model, {});
    const double norm = one.take();
    for (const StepCase& of : cases) {
      comm::run_ranks(of.mesh.dp, [&](comm::Communicator& comm) {
        SCOPED_TRACE(testing::Message()
                     << of.mesh.dp << " ranks, " << of.copies << " copies, stage " << of.zero
                     << ", " << of.passes << " passes");
        FourUnits mine;
        StepRank rank(comm, mine, of);
        const double factor = of.mesh.dp * of.passes;
        EXPECT_NEAR(rank.take(), norm * factor, 1e-5 * norm * factor);
        expect_gradients(rank, one, factor);
        EXPECT_EQ(program_bytes(rank),
                  (plan::step::StepBytes{rank.store().bytes_at_rest(), rank.store().peak_bytes()}));
      });
    }
  });
}

TEST(StepRunner, StateOnTheHostHasTheBitsOfStateOnTheDevice) {
  for (const bool bf16 : {false, true}) {
    for (int zero = 0; zero <= 3; ++zero) {
      comm::run_ranks(3, [&](comm::Communicator& comm) {
        SCOPED_TRACE(testing::Message() << "stage " << zero << (bf16 ? ", bf16" : ""));
        FourUnits model;
        StepCase of{.mesh = {.dp = 3}, .zero = zero, .passes = 2, .bf16 = bf16};
        StepRank device(comm, model, of);
        of.on_host = true;
        StepRank host(comm, model, of);
        for (int step = 0; step < 3; ++step) {
          const double norm = device.take();
          EXPECT_EQ(host.take(), norm);
          const std::vector<Piece>& pieces = host.store().pieces();
          for (std::size_t i = 0; i < pieces.size(); ++i) {
            const Piece& same = device.store().pieces()[i];
            EXPECT_TRUE(at::equal(pieces[i].value, same.value)) << same.name;
            EXPECT_TRUE(at::equal(pieces[i].mean, same.mean)) << same.name;
            EXPECT_TRUE(at::equal(pieces[i].square, same.square)) << same.name;
          }
        }
        const Store& store = host.store();
        EXPECT_EQ(program_bytes(host),
                  (plan::step::StepBytes{store.bytes_at_rest(), store.peak_bytes(),
                                         store.bytes_on_host()}));
        EXPECT_GT(store.bytes_on_host(), 0);
        EXPECT_EQ(device.store().bytes_on_host(), 0);
        EXPECT_EQ(store.bytes_at_rest() + store.bytes_on_host(), device.store().bytes_at_rest());
      });
    }
  }
}

/// The text with which each rank refuses a step that one of them has changed.
std::vector<std::string> refusals(const StepCase& of, int changed, plan::step::StepOp dropped) {
  std::vector<std::string> told(static_cast<std::size_t>(of.mesh.dp));
  comm::run_ranks(of.mesh.dp, [&](comm::Communicator& comm) {
    const FourUnits model;
    ParallelismOptions parallelism;
    parallelism.zero = of.zero;
    TrainingOptions training;
    training.global_batch_size = of.mesh.dp;
    const auto shape = step_shape_of(model, of.mesh, parallelism, training);
    const auto drop = [&](plan::RankProgram& program) {
      if (program.rank != changed) return;
      std::erase_if(program.ops, [&](const plan::Op& op) { return op.kind == dropped; });
    };
    try {
      proved_step(comm, shape, drop);
    } catch (const PlanError& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  return told;
}

TEST(StepProof, AChangedProgramIsShownOnEveryRank) {
  using plan::step::StepOp;
  EXPECT_THAT(refusals({.mesh = {.dp = 2}, .zero = 3}, 1, StepOp::Release),
              testing::Each(AllOf(HasSubstr("rank 1: train: the training step is not proved"),
                                  HasSubstr("which is not released"), HasSubstr("<-- HERE"))));
  EXPECT_THAT(refusals({.mesh = {.dp = 2}, .zero = 1}, 0, StepOp::Norm),
              testing::Each(AllOf(HasSubstr("rank 0: train: the training step is not proved"),
                                  HasSubstr("<-- HERE"))));
  // A large mesh is proved by a small one.
  EXPECT_THAT(refusals({.mesh = {.dp = 5}, .zero = 1}, 4, StepOp::Update),
              testing::Each(AllOf(HasSubstr("alike: op "), HasSubstr("of rank 4 is another one"),
                                  HasSubstr("<-- HERE"))));
  EXPECT_THAT(refusals({.mesh = {.dp = 5}, .zero = 1}, 9, StepOp::Update), testing::Each(""));
}

TEST(StepProof, AnotherModelIsRefusedOnEveryRank) {
  std::vector<std::string> told(2);
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    plan::step::StepShape shape{.units = {}, .mesh = {.dp = 2}};
    shape.units.push_back({.name = "unit", .split = 5 + comm.rank(), .uses = {}});
    try {
      proved_step(comm, shape);
    } catch (const InvalidArgument& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  EXPECT_THAT(told, testing::Each("train: the training step of rank 1 differs from that of rank 0; "
                                  "one model with the same parameters is required"));
}

}  // namespace
}  // namespace armillary::train
