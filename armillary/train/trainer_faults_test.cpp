// trainer_faults_test.cpp: models that go wrong on one rank in the middle of a run: all ranks end
// in the same step, with the rank, the parameter and the microbatch.
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
#include "armillary/model/registry.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// A decoder whose head is told its input and weights first, with the number of passes before.
class WatchedDecoder : public model::Decoder {
 public:
  using Watch = std::function<at::Tensor(int pass, const model::Weights&, const at::Tensor& x)>;

  WatchedDecoder(const model::DecoderOptions& options, Watch watch)
      : model::Decoder(options), watch_(std::move(watch)) {}
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs& inputs) override {
    const bool is_head = unit + 1 == static_cast<int>(units().size());
    return model::Decoder::run(unit, weights, is_head ? watch_(pass_++, weights, x) : x, inputs);
  }

 private:
  Watch watch_;
  int pass_ = 0;
};

/// The errors of the ranks of a mesh; `watch` is that of rank 1.
std::vector<std::string> errors_of(const Recipe& recipe, const WatchedDecoder::Watch& watch) {
  const MeshShape shape = mesh_of(recipe.parallelism);
  std::vector<std::string> told(static_cast<std::size_t>(shape.ranks()));
  const auto body = [&](comm::Communicator& comm) {
    const auto keep = [](int, const model::Weights&, const at::Tensor& x) { return x; };
    WatchedDecoder model(model::decoder_options(recipe.model).vocab_size(kVocabSize),
                         comm.rank() == 1 ? watch : WatchedDecoder::Watch(keep));
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
