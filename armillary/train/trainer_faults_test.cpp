// trainer_faults_test.cpp: models and memory that go wrong on one rank in the middle of a run: all
// ranks end in the same step, with the rank, the parameter or unit, and the microbatch.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/decoder.h"
#include "armillary/model/recompute.h"
#include "armillary/model/registry.h"
#include "armillary/train/rank_trainer.h"
#include "armillary/train/recording.h"
#include "armillary/train/step_proof.h"
#include "armillary/train/step_shape.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

/// A unit of the decoder of small_recipe(), on a rank.
struct WatchedPlace {
  int unit = 3;  ///< The head; 1 and 2: layers.
  int rank = 1;
};

/// A decoder of which a unit is told its input and weights first, with the number of passes before.
class WatchedDecoder : public model::Decoder {
 public:
  using Watch = std::function<at::Tensor(int pass, const model::Weights&, const at::Tensor& x)>;

  WatchedDecoder(const model::DecoderOptions& options, int watched, Watch watch)
      : model::Decoder(options), watched_(watched), watch_(std::move(watch)) {}
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs& inputs) override {
    const bool is_watched = unit == watched_;
    return model::Decoder::run(unit, weights, is_watched ? watch_(pass_++, weights, x) : x, inputs);
  }

 private:
  int watched_;
  Watch watch_;
  int pass_ = 0;
};

model::DecoderOptions decoder_of(const Recipe& recipe) {
  return model::decoder_options(recipe.model)
      .vocab_size(kVocabSize)
      .recompute(model::parse_recompute(recipe.activation_checkpoint.mode));
}

/// The errors of the ranks of a mesh; `watch` is that of one place.
std::vector<std::string> errors_of(const Recipe& recipe, const WatchedDecoder::Watch& watch,
                                   const WatchedPlace& place = {}) {
  const MeshShape shape = mesh_of(recipe.parallelism);
  std::vector<std::string> told(static_cast<std::size_t>(shape.ranks()));
  const auto body = [&](comm::Communicator& comm) {
    const auto keep = [](int, const model::Weights&, const at::Tensor& x) { return x; };
    WatchedDecoder model(decoder_of(recipe), place.unit,
                         comm.rank() == place.rank ? watch : WatchedDecoder::Watch(keep));
    try {
      train(comm::Mesh(comm, shape), model, words(recipe.training.seq_len), recipe, {});
    } catch (const Error& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  };
  try {
    comm::run_ranks(shape.ranks(), body);
  } catch (const Error&) {  // every rank has told it
  }
  return told;
}

TEST(TrainFaults, WhatIsNotFiniteIsNamedByRankParameterAndMicrobatch) {
  for (int zero = 0; zero <= 3; ++zero) {
    Recipe recipe = small_recipe();
    recipe.training.global_batch_size = 4;
    recipe.parallelism.data_parallel_shard_degree = 2;
    recipe.parallelism.zero = zero;
    // Pass 0 is the rehearsal. Two passes a step: the second of step 2, and of its second look.
    const auto broken = [](int pass, const model::Weights&, const at::Tensor& x) {
      return pass >= 4 && pass % 2 == 0 ? x * NAN : x;
    };
    EXPECT_THAT(
        errors_of(recipe, broken),
        Each(AllOf(HasSubstr("in step 2; finite numbers are required; the first in "
                             "microbatch 1 on rank 1: the gradient of parameter norm.weight"),
                   HasSubstr("train: loss nan and grad_norm nan"))))
        << zero;
  }
}

/// A change of values that a rank owns.
struct ValueChange {
  std::string parameter;
  int rank = 0;
  std::function<void(const at::Tensor& value)> change;
};

/// The errors of the ranks of a mesh whose memory changes between steps 1 and 2.
std::vector<std::string> errors_after(const Recipe& recipe, const ValueChange& change) {
  const MeshShape shape = mesh_of(recipe.parallelism);
  std::vector<std::string> told(static_cast<std::size_t>(shape.ranks()));
  const auto body = [&](comm::Communicator& comm) {
    const comm::Mesh mesh(comm, shape);
    model::Decoder model(decoder_of(recipe));
    const PackedText data = words(recipe.training.seq_len);
    const Recording recording(comm, "");
    const auto step = step_shape_of(model, recipe.parallelism, recipe.training, recipe.optimizer);
    RankTrainer trainer(mesh, model, proved_step(comm, step), {data, recipe, recording});
    const auto beside = [] { return Beside(); };
    trainer.begin_after({});
    trainer.step(1, beside);
    int changed = 0;
    for (const StateTensor& state : trainer.state()) {
      if (comm.rank() != change.rank || state.name != "parameters/" + change.parameter) continue;
      const at::NoGradGuard no_grad;
      change.change(state.tensor);
      ++changed;
    }
    EXPECT_EQ(changed, comm.rank() == change.rank ? 1 : 0);
    try {
      trainer.step(2, beside);
      if (!trainer.spike().empty()) fail<Error>("train: {}", trainer.spike());
    } catch (const Error& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  };
  try {
    comm::run_ranks(shape.ranks(), body);
  } catch (const Error&) {  // every rank has told it
  }
  return told;
}

/// A rank of a mesh.
struct RankOf {
  MeshDegrees degrees;
  int rank = 0;
};

// Behind the first layer the NaN is on all ranks along cp and tp.
TEST(TrainFaults, AValueThatIsNaNIsNamedByTheRankThatOwnsIt) {
  for (const auto& [degrees, rank] : {RankOf{{.tp = 2}, 1},
                                      {{.shards = 2, .zero = 3, .tp = 2}, 1},
                                      {{.shards = 2, .zero = 3, .tp = 2}, 0},
                                      {{.shards = 2, .zero = 1}, 0},
                                      {{.cp = 2}, 1},
                                      {{.shards = 2, .cp = 2, .tp = 2}, 5},
                                      {{.shards = 2, .cp = 2, .zero = 3, .tp = 2}, 1}}) {
    SCOPED_TRACE(to_string(degrees));
    Recipe recipe = on(small_recipe(), degrees);
    const auto told = errors_after(
        recipe, {"layers.0.attention.wq.weight", rank,
                 [](const at::Tensor& value) { value.select(0, value.size(0) - 1).fill_(NAN); }});
    EXPECT_THAT(told, Each(told.front()));
    EXPECT_THAT(
        told.front(),
        AllOf(HasSubstr("in step 2; finite numbers are required; the first on rank " +
                        std::to_string(rank) +
                        ", before the step: the value of parameter layers.0.attention.wq.weight; "
                        "no update makes it so"),
              Not(HasSubstr("lower optimizer.lr"))));
  }
}

// An update may have made it, by a rate that is too large.
TEST(TrainFaults, AValueThatIsInfIsNamedWithTheRate) {
  const auto told =
      errors_after(on(small_recipe(), {.tp = 2}),
                   {"norm.weight", 1, [](const at::Tensor& value) { value.fill_(INFINITY); }});
  EXPECT_THAT(told, Each(told.front()));
  EXPECT_THAT(told.front(),
              HasSubstr("the first on rank 1, before the step: the value of parameter "
                        "norm.weight; lower optimizer.lr"));
}

TEST(TrainFaults, AnActivationThatIsNotFiniteIsNamedByRankUnitAndMicrobatch) {
  // Pass 0 is the rehearsal, 1 is that of step 1.
  const auto broken = [](int pass, const model::Weights&, const at::Tensor& x) {
    return pass >= 2 ? x * INFINITY : x;
  };
  for (const auto& [degrees, rank] : {RankOf{{.cp = 2}, 1},
                                      {{.tp = 2}, 1},
                                      {{.shards = 2, .zero = 3, .tp = 2}, 3},
                                      {{.shards = 2, .cp = 2, .tp = 2}, 5}}) {
    for (const char* mode : {"none", "attention_output", "full"}) {
      for (const int unit : {1, 2}) {
        Recipe recipe = on(small_recipe(), degrees);
        recipe.training.global_batch_size = degrees.shards;
        recipe.activation_checkpoint.mode = mode;
        const auto told = errors_of(recipe, broken, {unit, rank});
        SCOPED_TRACE(to_string(degrees) + " " + mode + " " + std::to_string(unit));
        EXPECT_THAT(told, Each(told.front()));
        EXPECT_THAT(told.front(),
                    HasSubstr("in step 2; finite numbers are required; the first in microbatch 0 "
                              "on rank " +
                              std::to_string(rank) + ": an activation of unit layers." +
                              std::to_string(unit - 1) + "; lower optimizer.lr"));
      }
    }
  }
}

/// A rank of a mesh whose experts so many ranks share.
struct ExpertsOf {
  MeshDegrees degrees;
  int ep = 1;
  int rank = 0;
  int other = 0;  ///< The first rank that has its experts.
};

Recipe recipe_of_experts(const ExpertsOf& of) {
  Recipe recipe = on(small_moe_recipe(), of.degrees);
  recipe.parallelism.expert_parallel_degree = of.ep;
  recipe.training.global_batch_size = of.degrees.copies * of.degrees.shards;
  return recipe;
}

// The ranks with the other experts get its rows, and give theirs back.
TEST(TrainFaults, AnActivationOfExpertsIsNamedBeforeItsRowsTravel) {
  const auto broken = [](int pass, const model::Weights&, const at::Tensor& x) {
    return pass >= 2 ? x * INFINITY : x;
  };
  for (const ExpertsOf& of : {ExpertsOf{{.cp = 2}, 2, 1},
                              {{.tp = 2}, 2, 1},
                              {{.shards = 2, .zero = 1}, 2, 1},
                              {{.shards = 2, .zero = 3, .tp = 2}, 4, 3}}) {
    for (const char* mode : {"none", "full"}) {
      Recipe recipe = recipe_of_experts(of);
      recipe.activation_checkpoint.mode = mode;
      const auto told = errors_of(recipe, broken, {.unit = 2, .rank = of.rank});
      SCOPED_TRACE(to_string(of.degrees) + " " + mode);
      EXPECT_THAT(told, Each(told.front()));
      EXPECT_THAT(told.front(),
                  HasSubstr("the first in microbatch 0 on rank " + std::to_string(of.rank) +
                            ": an activation of unit layers.0.experts; lower optimizer.lr"));
    }
  }
}

// The head's own fault, before its ranks along tp have it.
TEST(TrainFaults, AnActivationOfTheHeadIsNamedByItsRankAlongTp) {
  const auto broken = [](int pass, const model::Weights&, const at::Tensor& x) {
    return pass >= 2 ? x * NAN : x;
  };
  Recipe recipe = on(small_recipe(), {.tp = 2});
  recipe.training.global_batch_size = 1;
  EXPECT_THAT(errors_of(recipe, broken),
              Each(HasSubstr("the first in microbatch 0 on rank 1: an activation of unit head")));
}

/// Adds to a parameter in step 2.
at::Tensor flipped(int pass, const model::Weights& weights, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  if (pass == 2) weights.at("norm.weight").add_(1e-3);
  return x;
}

// Along cp, along tp, and a copy of a share.
TEST(TrainFaults, AReplicaThatDiffersIsNamed) {
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 2}, {.tp = 2}, {.copies = 2, .zero = 1}}) {
    Recipe recipe = on(small_recipe(), degrees);
    recipe.training.global_batch_size = degrees.copies;
    recipe.training.check_replicas = 2;
    EXPECT_THAT(errors_of(recipe, flipped),
                Each(HasSubstr("train: parameter norm.weight of rank 1 differs from that of rank 0 "
                               "after step 2; equal ones are required")))
        << to_string(degrees);
    recipe.training.check_replicas = 0;
    EXPECT_THAT(errors_of(recipe, flipped), Each("")) << to_string(degrees);
  }
}

// Values that are divided over the replicas, and those of KV heads that some of the ranks along tp
// share.
TEST(TrainFaults, AReplicaAlongTpThatDiffersIsNamed) {
  struct Case {
    MeshDegrees degrees;
    std::string parameter;
    int rank;
    int other;
  };
  const std::string kv = "layers.0.attention.wk.weight";
  for (const auto& [degrees, parameter, rank, other] :
       {Case{{.shards = 2, .zero = 3, .tp = 2}, "norm.weight", 1, 0},
        Case{{.cp = 2, .zero = 3, .tp = 2}, "layers.1.ffn_norm.weight", 1, 0},
        Case{{.copies = 2, .shards = 2, .zero = 3, .tp = 2}, "norm.weight", 1, 0},
        Case{{.tp = 4}, kv, 3, 2}, Case{{.shards = 2, .zero = 3, .tp = 4}, kv, 3, 2}}) {
    SCOPED_TRACE(to_string(degrees));
    Recipe recipe = on(small_recipe(), degrees);
    recipe.training.global_batch_size = degrees.copies * degrees.shards;
    const ValueChange change{parameter, rank, [](const at::Tensor& value) { value.add_(1e-3); }};
    recipe.training.check_replicas = 2;
    const std::string text = "train: parameter " + parameter + " of rank " + std::to_string(rank) +
                             " differs from that of rank " + std::to_string(other) +
                             " after step 2; equal ones are required";
    const auto told = errors_after(recipe, change);
    EXPECT_THAT(told, Each(told.front()));
    EXPECT_THAT(told.front(), HasSubstr(text));
    recipe.training.check_replicas = 0;
    EXPECT_THAT(errors_after(recipe, change), Each(""));
  }
}

// Experts are compared with the same ones of their replicas, and of copies.
TEST(TrainFaults, AReplicaOfExpertsThatDiffersIsNamed) {
  for (const ExpertsOf& of : {ExpertsOf{{.shards = 4}, 2, 3, 1},
                              {{.tp = 2}, 1, 1, 0},
                              {{.shards = 2, .cp = 2}, 2, 3, 1},
                              {{.copies = 2, .cp = 2, .zero = 1}, 2, 3, 1}}) {
    SCOPED_TRACE(to_string(of.degrees));
    Recipe recipe = recipe_of_experts(of);
    recipe.training.check_replicas = 2;
    const std::string name = "layers.0.moe.experts.w1";
    const auto told =
        errors_after(recipe, {name, of.rank, [](const at::Tensor& value) { value.add_(1e-3); }});
    EXPECT_THAT(told, Each(told.front()));
    EXPECT_THAT(told.front(),
                HasSubstr("train: parameter " + name + " of rank " + std::to_string(of.rank) +
                          " differs from that of rank " + std::to_string(of.other) +
                          " after step 2; equal ones are required"));
    EXPECT_THAT(errors_after(recipe, {name, of.rank, [](const at::Tensor&) {}}), Each(""));
  }
}

// Rank 1 differs from 3 along cp and from 0 along tp: all tell what rank 0 found.
TEST(TrainFaults, AReplicaOfAMixedMeshIsNamedByItsRankInTheWorld) {
  Recipe recipe = on(small_recipe(), {.cp = 2, .tp = 2});
  recipe.training.global_batch_size = 1;
  recipe.training.check_replicas = 2;
  const std::vector<std::string> told = errors_of(recipe, flipped);
  EXPECT_THAT(told, Each(HasSubstr("train: parameter norm.weight of rank 1 differs from that of "
                                   "rank 0 after step 2")));
  EXPECT_THAT(told, Each(told.front()));
}

}  // namespace
}  // namespace armillary::train
