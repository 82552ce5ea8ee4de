// user_dit_test.cpp: a model of one's own: a small DiT (arXiv:2212.09748) learns the noise in
// latents. It is written against units and parameters alone, and trains on any number of ranks.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using model::ModelInputs, model::Parameter, model::TpSplit, model::Shape, model::Weights;
constexpr std::int64_t kDim = 16, kHeads = 4, kHeadDim = 4, kLength = 50;

class NoisyLatents : public Data {
 public:
  std::int64_t vocab_size() const override { return 0; }
  Sequence at(std::int64_t index) const override {
    const at::Tensor waves_E = at::arange(1, kDim + 1, at::kFloat);
    const at::Tensor place_S = at::arange(kLength, at::kFloat) + 7 * index;
    return {.fields = {{"latents", at::outer(place_S, waves_E * 0.1).sin()},
                       {"noise", at::outer(place_S + 0.5, waves_E * 12.9898).cos()},
                       {"times", at::full({kLength}, 0.4 + 0.1 * (index % 5), at::kFloat)}},
            .documents = {kLength}};
  }
};

class UserDit : public model::Model {
 public:
  std::vector<std::string> units() const override { return {"embedding", "0", "1", "head"}; }
  std::vector<std::string> fields() const override { return {"latents", "noise", "times"}; }
  std::vector<Parameter> parameters() const override {
    std::vector<Parameter> all;
    const auto add = [&](const std::string& unit, const char* name, Shape shape, TpSplit cut) {
      all.push_back({unit + name, shape, cut, 1, {unit}, {.deviation = 0.2}});
    };
    add("embedding", ".in", {kDim, kDim}, TpSplit::Whole);
    for (const char* layer : {"0", "1"}) {
      add(layer, ".modulation", {6 * kDim, kDim}, TpSplit::Whole);
      for (const char* w : {".q", ".k", ".v"}) add(layer, w, {kDim, kDim}, TpSplit::Columns);
      add(layer, ".o", {kDim, kDim}, TpSplit::Rows);
      add(layer, ".up", {4 * kDim, kDim}, TpSplit::Columns);
      add(layer, ".down", {kDim, 4 * kDim}, TpSplit::Rows);
    }
    add("head", ".out", {kDim, kDim}, TpSplit::Whole);
    return all;
  }
  cost::ModelCost cost() const override { return {.attention = {2, kHeads, kHeads, kHeadDim}}; }

  at::Tensor run(int unit, const Weights& weights, const at::Tensor& x,
                 const ModelInputs& in) override {
    const at::Tensor& noise = in.batch.at("noise");
    const at::Tensor time = in.batch.at("times").unsqueeze(2);
    const std::string name = units()[static_cast<std::size_t>(unit)];
    const auto linear = [&](const at::Tensor& y, const char* weight) {
      return at::linear(y, weights.at(name + weight));
    };
    if (name == "head") return (linear(x, ".out") - noise).square().sum();
    if (name == "embedding") {
      return linear(in.batch.at("latents") * (1 - time * time).sqrt() + noise * time, ".in");
    }
    const auto m = linear((time * at::arange(1, kDim + 1)).sin(), ".modulation").chunk(6, 2);
    const auto normed = [](const at::Tensor& y, const at::Tensor& scale, const at::Tensor& shift) {
      return at::layer_norm(y, {kDim}) * (1 + scale) + shift;
    };
    const auto heads = [&](const at::Tensor& y) { return y.unflatten(2, {kHeads, -1}); };
    const at::Tensor y = normed(x, m[0], m[1]);
    const auto call = in.attends.attend.begin({1, y.size(1), kHeads, kHeads, kHeadDim, at::kFloat});
    const at::Tensor k = heads(linear(y, ".k")), v = heads(linear(y, ".v"));
    call.take_k(k.detach());
    call.take_v(v.detach());
    const at::Tensor out = call.finish(heads(linear(y, ".q")), k, v).flatten(2);
    const at::Tensor h = x + m[2] * linear(out, ".o");
    return h + m[5] * linear(at::gelu(linear(normed(h, m[3], m[4]), ".up")), ".down");
  }
};

TEST(Exercise, ADitTrainsTheSameOnAnyRanks) {
  std::vector<double> losses[2];
  for (const int world : {1, 3}) {
    Recipe recipe = small_recipe();  // of sequences of kLength
    recipe.parallelism.context_parallel_degree = world;
    recipe.parallelism.mask = "full";
    recipe.training.local_batch_size = world == 1 ? 1 : 2;
    recipe.optimizer.lr = 0.03;
    comm::run_ranks(world, [&](comm::Communicator& comm) {
      UserDit model;
      train(comm::Mesh(comm, {.cp = world}), model, NoisyLatents(), recipe,
            {.on_step = [&](const StepMetrics& step) { losses[world / 2].push_back(step.loss); }});
    });
  }
  EXPECT_LT(losses[0].back(), 0.5 * losses[0].front());
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    EXPECT_NEAR(losses[0][i], losses[1].at(i), 1e-4 * losses[0][i]) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace armillary::train
