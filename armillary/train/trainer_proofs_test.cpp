// trainer_proofs_test.cpp: the proofs of a training run; no program runs without one. A strategy
// that lacks a send is refused, and each mask is proved once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/step/words.h"
#include "armillary/plan/testing/without_a_send.h"
#include "armillary/proof/digest.h"
#include "armillary/proof/proof_file.h"
#include "armillary/proof/proofs.h"
#include "armillary/train/estimate.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Train, APlanThatIsWrongDoesNotRun) {
  for (const plan::Pass broken : {plan::Pass::Forward, plan::Pass::Backward}) {
    const std::string name = "without_a_send_" + std::string(to_string(broken));
    plan::testing::add_strategy_without_a_send(name, {broken});
    Recipe recipe = small_recipe();
    recipe.parallelism.context_parallel_degree = 2;
    recipe.parallelism.strategy = name;
    recipe.comm.train_timeout_seconds = 5;
    EXPECT_THAT([&] { run(recipe); },
                ThrowsMessage<PlanError>(HasSubstr("attention: " + name + " " +
                                                   std::string(to_string(broken)) + ": rank 0 op")))
        << name;
  }
}

TEST(Train, AStepThatIsWrongDoesNotRun) {
  Recipe recipe = small_recipe();
  recipe.parallelism.data_parallel_shard_degree = 2;
  const auto without_a_sum = [](plan::RankProgram& program) {
    if (program.rank == 0) return;
    const auto sum = std::ranges::find_if(program.ops, [](const plan::Op& op) {
      return op.kind == plan::step::StepOp::ReduceInPlace;
    });
    ASSERT_NE(sum, program.ops.end());
    program.ops.erase(sum);
  };
  EXPECT_THAT(
      [&] { train(recipe, words(recipe.training.seq_len), {.on_program = without_a_sum}); },
      ThrowsMessage<PlanError>(AllOf(
          HasSubstr("train: the training step is not proved"),
          HasSubstr("is all_reduce, but rank 0 comes to reduce_in_place"), HasSubstr("<-- HERE"))));
}

// Each mask is proved once, whatever the layers, steps and ranks, and proofs made ahead are used.
/// The proofs that this process has begun. The worker, which takes proofs in order, has begun all
/// that earlier tests asked for: a run does not wait for proofs of steps that it never takes.
std::int64_t proofs_made() {
  std::promise<void> begun;
  const auto last = std::make_shared<proof::Proofs>([&](plan::Pass) {
    begun.set_value();
    return proof::PassProof();
  });
  last->start(plan::Pass::Forward);
  begun.get_future().wait();
  last->get(plan::Pass::Forward);
  return proof::Proofs::count();
}

TEST(Train, EveryMaskIsProvedOnce) {
  for (const std::string mask : {"window:left=9,right=1", "documents"}) {
    Recipe recipe = small_recipe();
    recipe.training.seq_len = 46;  // no other test uses it: proofs are kept for the whole process
    recipe.parallelism.context_parallel_degree = 3;
    recipe.parallelism.mask = mask;
    recipe.training.steps = 3;
    std::set<std::string> masks;
    for (int i = 0; i < 6; ++i) {
      const Sequence sequence = words(46).at(i);
      masks.insert(proof::to_string(proof::digest_of(
          attention_problem(recipe, sequence_mask(mask, sequence.documents)), {})));
    }
    const std::int64_t before = proofs_made();
    run(recipe);
    EXPECT_EQ(proof::Proofs::count() - before, masks.size() * proof::kPasses.size()) << mask;
    EXPECT_EQ(masks.size() == 1, mask != "documents");
  }
}

TEST(Train, ReadsRecordedProofs) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("armillary_train_" + std::to_string(::getpid()));
  Recipe recipe = small_recipe();
  recipe.training.steps = 2;
  recipe.parallelism.context_parallel_degree = 3;
  recipe.parallelism.mask = "window:left=8,right=1";
  recipe.parallelism.proofs = folder.string();
  const plan::Problem problem = attention_problem(
      recipe, plan::parse_mask(recipe.parallelism.mask,
                               {recipe.training.seq_len, recipe.training.seq_len}));
  const std::string path = proof::save_proof(folder.string(), problem,
                                             plan::parse_strategy(recipe.parallelism.strategy));
  const std::int64_t before = proofs_made();
  run(recipe);
  EXPECT_EQ(proof::Proofs::count(), before);
  std::ofstream(path, std::ios::app) << "x";
  EXPECT_THAT([&] { run(recipe); },
              ThrowsMessage<InvalidArgument>(HasSubstr("is cut off, or is no JSON")));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace armillary::train
