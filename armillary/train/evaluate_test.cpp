// evaluate_test.cpp: the loss of an evaluation is that of one rank on any mesh, and of a training
// step on the same sequences; what was trained stays as it is; ranks with other data end together.
#include "armillary/train/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/recipe.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kSequences = 5;  // No multiple of the ranks along dp.

/// All files below a folder, with their bytes.
std::map<std::string, std::string> files_of(const ScratchFolder& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    const std::string name = std::filesystem::relative(entry.path(), folder.path()).string();
    files[name] = folder.read(name);
  }
  return files;
}

/// Data of which one sequence cannot be read.
class DataWithAGap : public Data {
 public:
  DataWithAGap(const Data& data, std::int64_t gap) : data_(data), gap_(gap) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  std::int64_t sequences_per_epoch() const override { return data_.sequences_per_epoch(); }
  Sequence at(std::int64_t index) const override {
    if (index == gap_) fail<IoError>("data: sequence {} is gone", index);
    return data_.at(index);
  }

 private:
  const Data& data_;
  std::int64_t gap_;
};

/// Data that do not say how long an epoch is.
class EndlessData : public Data {
 public:
  explicit EndlessData(const Data& data) : data_(data) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override { return data_.at(index); }

 private:
  const Data& data_;
};

TEST(Evaluate, IsTheLossOfOneRankOnAnyMesh) {
  const Recipe recipe = small_recipe();
  const PackedText text = words(recipe.training.seq_len);
  const EvalResult one = evaluate(recipe, text, {.sequences = kSequences});
  EXPECT_EQ(one.sequences, kSequences);
  EXPECT_GT(one.targets, 0);
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 2},
                                     {.shards = 2, .zero = 1},
                                     {.shards = 3, .zero = 3},
                                     {.tp = 2},
                                     {.copies = 2, .shards = 2, .zero = 2},
                                     {.shards = 2, .cp = 2, .zero = 3, .tp = 2}}) {
    const EvalResult result = evaluate(on(recipe, degrees), text, {.sequences = kSequences});
    EXPECT_NEAR(result.loss, one.loss, 1e-5 * one.loss) << to_string(degrees);
    EXPECT_EQ(result.targets, one.targets) << to_string(degrees);
  }
}

TEST(Evaluate, ExpertsMayBeSharedByAnyRanks) {
  const Recipe recipe = small_moe_recipe();
  const PackedText text = words(recipe.training.seq_len);
  const EvalResult one = evaluate(recipe, text, {.sequences = kSequences});
  for (const auto& [degrees, ep] : {std::pair{MeshDegrees{.cp = 2}, 2},
                                    {MeshDegrees{.shards = 2, .cp = 2, .zero = 3, .tp = 2}, 4},
                                    {MeshDegrees{.shards = 3, .zero = 1}, 3}}) {
    Recipe shared = on(recipe, degrees);
    shared.parallelism.expert_parallel_degree = ep;
    const EvalResult result = evaluate(shared, text, {.sequences = kSequences});
    EXPECT_NEAR(result.loss, one.loss, 1e-5 * one.loss) << to_string(degrees) << ", ep " << ep;
  }
}

TEST(Evaluate, HasNoBalanceOfExperts) {
  Recipe recipe = on(small_moe_recipe(), {.cp = 2});
  recipe.parallelism.expert_parallel_degree = 2;
  const PackedText text = words(recipe.training.seq_len);
  const EvalResult balanced = evaluate(recipe, text, {.sequences = kSequences});
  recipe.model.router_aux_loss_coef = 0;
  EXPECT_EQ(evaluate(recipe, text, {.sequences = kSequences}).loss, balanced.loss);
}

TEST(Evaluate, IsTheLossOfAStepOnTheSameSequences) {
  Recipe recipe = small_recipe();
  recipe.training.global_batch_size = kSequences;
  recipe.training.steps = 1;
  recipe.lr_scheduler.warmup_steps = 0;
  const PackedText text = words(recipe.training.seq_len);
  EXPECT_NEAR(evaluate(recipe, text, {.sequences = kSequences}).loss, run(recipe).front().loss,
              1e-6);
}

TEST(Evaluate, ReadsACheckpointOnAnotherMeshAndLeavesIt) {
  const ScratchFolder folder;
  Recipe recipe = small_recipe();
  recipe.job.dump_folder = folder.path();
  recipe.checkpoint.enable = true;
  run(on(recipe, {.shards = 2, .zero = 1}));
  const std::string checkpoint = find_checkpoints(checkpoint_folder(recipe)).whole.back().path;
  const auto before = files_of(folder);
  const PackedText text = words(recipe.training.seq_len);
  const EvalResult first = evaluate(recipe, text, {.sequences = kSequences});
  const EvalOptions options{.checkpoint = checkpoint, .sequences = kSequences};
  const EvalResult one = evaluate(recipe, text, options);
  EXPECT_LT(one.loss, first.loss);
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 3}, {.shards = 2, .cp = 2, .zero = 3}}) {
    EXPECT_NEAR(evaluate(on(recipe, degrees), text, options).loss, one.loss, 1e-5 * one.loss);
  }
  EXPECT_EQ(files_of(folder), before);
}

TEST(Evaluate, OtherDataOrABrokenSequenceOnOneRankEndsAll) {
  const Recipe recipe = on(small_recipe(), {.cp = 2});
  const PackedText text = words(recipe.training.seq_len);
  const DataWithAGap whole(text, -1);
  const DataWithAGap first_gone(text, 0);
  const DataWithAGap fourth_gone(text, 3);
  const PackedText other({std::string(5000, 'x')}, {.seq_len = recipe.training.seq_len});
  const auto expect_refused = [&](const Data& of_rank_1, const std::string& reason) {
    std::vector<std::string> texts(2);
    const auto body = [&](comm::Communicator& comm) {
      const comm::Mesh mesh(comm, mesh_of(recipe.parallelism));
      const auto model = make_model(recipe);
      try {
        evaluate(mesh, *model, comm.rank() == 0 ? whole : of_rank_1, recipe,
                 {.sequences = kSequences});
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(comm.rank())] = error.what();
        throw;
      }
    };
    EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = 20}), Error);
    EXPECT_THAT(texts, testing::Each(HasSubstr(reason)));
  };
  expect_refused(first_gone, "sequence 0 is gone");
  expect_refused(fourth_gone, "sequence 3 is gone");
  expect_refused(other, "sequences of the data");
}

TEST(Evaluate, RefusesNumbersOfSequencesThatTheDataHaveNot) {
  const Recipe recipe = small_recipe();
  const PackedText text = words(recipe.training.seq_len);
  EXPECT_EQ(evaluate(recipe, text, {}).sequences, text.sequences());
  EXPECT_THAT([&] { evaluate(recipe, text, {.sequences = text.sequences() + 1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: ")));
  EXPECT_THAT([&] { evaluate(recipe, text, {.sequences = -1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: 1")));
  EXPECT_THAT([&] { evaluate(recipe, EndlessData(text), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("without an end; at least 1")));
  EXPECT_THAT([&] { evaluate(recipe, text, {.checkpoint = "a", .init_from = "b"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("one is required")));
}

}  // namespace
}  // namespace armillary::train
