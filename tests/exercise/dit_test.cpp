// dit_test.cpp: a model of one's own: a DiT layer (arXiv:2212.09748) learns the noise in latents.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

constexpr std::int64_t kDim = 16, kHeads = 4;
constexpr double kTime = 0.6;  // of diffusion: sqrt(1 - kTime^2) of the latents is left

class DitLayer : public Model {
 public:
  DitLayer() {
    at::Generator generator = at::detail::createCPUGenerator(1);
    for (const std::int64_t rows : {6, 1, 1, 1, 1, 4, 4, 1}) {
      const at::Tensor start = at::randn({rows * kDim, kDim}, generator, at::kFloat) * 0.2;
      weights_.push_back(start.detach().requires_grad_(true));
    }
  }
  std::vector<at::Tensor> parameters() const override { return weights_; }
  ModelCost cost() const override { return {.attention = {1, kHeads, kHeads, kDim / kHeads}}; }

  at::Tensor loss(const TrainingBatch& batch, const Attends& attends,
                  const at::Tensor& p_L) override {
    const at::Tensor waves_E = at::arange(1, kDim + 1, at::kFloat);
    const at::Tensor latents_LE = at::outer(batch.tokens_BL[0].to(at::kFloat), waves_E * 0.1).sin();
    const at::Tensor noise_LE = at::outer(p_L.to(at::kFloat) + 0.5, waves_E * 12.9898).cos();
    const at::Tensor x_LE = latents_LE * std::sqrt(1 - kTime * kTime) + noise_LE * kTime;
    const auto m = at::linear(at::silu(waves_E * kTime / kDim), weights_[0]).chunk(6);
    const auto normed = [](const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
      return at::layer_norm(x, {kDim}) * (1 + scale) + shift;
    };
    const at::Tensor h_LE = x_LE + m[2] * attention(normed(x_LE, m[0], m[1]), attends.attend);
    const at::Tensor hidden = at::gelu(at::linear(normed(h_LE, m[3], m[4]), weights_[5]));
    const at::Tensor y_LE = h_LE + m[5] * at::mm(hidden, weights_[6]);
    return (at::linear(y_LE, weights_[7]) - noise_LE).square().sum();
  }

 private:
  at::Tensor attention(const at::Tensor& x_LE, const Attend& attend) const {
    const auto heads = [&](int i) {
      return at::linear(x_LE, weights_[i]).view({1, x_LE.size(0), kHeads, kDim / kHeads});
    };
    const auto call = attend.begin({1, x_LE.size(0), kHeads, kHeads, kDim / kHeads, at::kFloat});
    const at::Tensor k = heads(2), v = heads(3);
    call.take_k(k.detach());
    call.take_v(v.detach());
    return at::linear(call.finish(heads(1), k, v).flatten(2)[0], weights_[4]);
  }
  std::vector<at::Tensor> weights_;  // modulation, q, k, v, o, up, down, out
};

TEST(Exercise, ADitLayerTrainsTheSameOnAnyRanks) {
  std::vector<double> losses[2];
  for (const int world : {1, 3}) {
    Recipe recipe = small_recipe();
    recipe.parallelism.context_parallel_degree = world;
    recipe.parallelism.mask = "full";
    recipe.optimizer.lr = 0.03;
    comm::run_ranks(world, [&](comm::Communicator& comm) {
      DitLayer model;
      train(Mesh(comm, {.cp = world}), model, words(recipe.training.seq_len), recipe,
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
