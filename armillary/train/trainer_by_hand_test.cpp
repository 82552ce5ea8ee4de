// trainer_by_hand_test.cpp: a whole training run, from the packed text to AdamW, against the same
// run computed with the plain model of plain_decoder.h, in fp64, on one device.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/model/registry.h"
#include "armillary/model/testing/plain_decoder.h"
#include "armillary/train/matmul_peak.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/testing/sequences.h"
#include "armillary/train/trainer.h"

namespace armillary::train {
namespace {

constexpr std::int64_t kRunLen = 40;

/// Documents whose bytes count up, each byte of the text once: a token determines the next one.
struct CountingText {
  std::vector<std::string> documents;
  std::vector<bool> is_last = std::vector<bool>(256);

  CountingText() {
    int next = 0;
    for (const int length : {50, 3, 1, 30, 2, 2, 1, 70, 1, 1, 1, 3, 2, 4, 60, 5}) {
      std::string document;
      for (int i = 0; i < length; ++i) document += static_cast<char>(next++);
      is_last[static_cast<std::size_t>(next) - 1] = true;
      documents.push_back(document);
    }
  }

  std::int64_t label_of(std::int64_t token) const {
    if (token == kSeparator) return model::kIgnoredLabel;
    return is_last[static_cast<std::size_t>(token)] ? kSeparator : token + 1;
  }
};

/// Tensors of one sequence, made from its tokens alone.
struct PlainSequence {
  at::Tensor tokens_L, labels_L, documents_L;
  std::int64_t targets = 0;

  PlainSequence(const CountingText& text, const std::vector<std::int64_t>& tokens) {
    std::vector<std::int64_t> labels;
    std::vector<std::int64_t> documents;
    std::int64_t document = 0;
    for (const std::int64_t token : tokens) {
      labels.push_back(text.label_of(token));
      documents.push_back(document);
      if (token == kSeparator) ++document;
      if (token != kSeparator) ++targets;
    }
    tokens_L = at::tensor(tokens, at::kLong);
    labels_L = at::tensor(labels, at::kLong);
    documents_L = at::tensor(documents, at::kLong);
  }
};

struct RunCase {
  const char* name;
  std::int64_t world = 1;
  const char* strategy = "ring";
  const char* layout = "zigzag";
  const char* mask = "documents";
  const char* mode = "none";
  bool tied = false;
  const char* model = "gpt";
  std::int64_t words = kVocabSize;
};

Recipe run_recipe(const RunCase& example) {
  Recipe recipe;
  recipe.model.name = example.model;
  recipe.model.dim = 32;
  recipe.model.n_layers = 2;
  recipe.model.n_heads = 4;
  recipe.model.n_kv_heads = 2;
  recipe.model.hidden_dim = 40;
  recipe.model.rope_theta = 100;
  recipe.model.norm_eps = 1e-3;
  recipe.model.enable_weight_tying = example.tied;
  recipe.model.vocab_size = example.words;
  recipe.model.max_seq_len = kRunLen;
  recipe.training.seq_len = kRunLen;
  recipe.training.global_batch_size = 2;
  recipe.training.steps = 6;
  recipe.training.max_norm = 0.5;
  recipe.training.loss_chunk_tokens = 7;
  recipe.training.seed = 11;
  // Steps are as large as the gradients, so a wrong scale shows.
  recipe.optimizer = {
      .name = "AdamW", .lr = 0.05, .beta1 = 0.7, .beta2 = 0.8, .eps = 0.01, .weight_decay = 0.3};
  recipe.lr_scheduler = {
      .warmup_steps = 2, .decay_ratio = 0.5, .decay_type = "linear", .min_lr_factor = 0.1};
  recipe.activation_checkpoint.mode = example.mode;
  recipe.parallelism.context_parallel_degree = example.world;
  recipe.parallelism.strategy = example.strategy;
  recipe.parallelism.layout = example.layout;
  recipe.parallelism.mask = example.mask;
  return recipe;
}

// Warm-up in 2 steps; 3 of 6 steps decay, from 1 towards 0.1 at step 7.
constexpr double kRates[] = {0.5, 1, 1, 1, 0.7, 0.4};

/// Loss and gradient norm of every step.
std::vector<StepMetrics> plain_run(const Recipe& recipe, const CountingText& text,
                                   const PackedText& packed) {
  const model::DecoderOptions sizes = model::decoder_options(recipe.model);
  model::PlainDecoder model(sizes, model::DecoderReplica(sizes, recipe.training.seed));
  std::map<std::string, at::Tensor> means;
  std::map<std::string, at::Tensor> squares;
  std::vector<StepMetrics> steps;
  for (int step = 1; step <= 6; ++step) {
    const PlainSequence a(text, tokens_of(packed.at(2 * step - 2)));
    const PlainSequence b(text, tokens_of(packed.at(2 * step - 1)));
    EXPECT_TRUE(step > 1 || a.targets != b.targets) << "the step that shows a mean of means";
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const PlainSequence& one : {a, b}) {
      at::Tensor visible_LL = model::visible_within(one.documents_L);
      if (recipe.parallelism.mask != "documents") {  // a window of 6, over all documents
        visible_LL = at::ones({kRunLen, kRunLen}, at::kBool).tril().triu(-5);
      }
      loss = loss + model.loss(one.tokens_L, one.labels_L, visible_LL);
    }
    loss = loss / static_cast<double>(a.targets + b.targets);
    loss.backward();
    double sum = 0;
    for (auto& [name, x] : model.parameters()) sum += x.grad().square().sum().item<double>();
    const double norm = std::sqrt(sum);
    steps.push_back({.step = step, .loss = loss.item<double>(), .grad_norm = norm});
    const at::NoGradGuard no_grad;
    const double lr = 0.05 * kRates[step - 1];
    for (auto& [name, x] : model.parameters()) {
      const at::Tensor gradient = x.grad() * std::min(1.0, 0.5 / (norm + 1e-6));
      const auto mixed = [&, &name = name](auto& moments, double beta, const at::Tensor& now) {
        const auto before = moments.contains(name) ? moments[name] : at::zeros_like(now);
        moments[name] = beta * before + (1 - beta) * now;
        return moments[name] / (1 - std::pow(beta, step));
      };
      const at::Tensor mean = mixed(means, 0.7, gradient);
      const at::Tensor square = mixed(squares, 0.8, gradient.square());
      x.copy_(x * (1 - lr * 0.3) - lr * mean / (square.sqrt() + 0.01));
      x.mutable_grad().reset();
    }
  }
  return steps;
}

TEST(TrainByHand, LossAndGradientNormAreThoseOfPlainOps) {
  for (const RunCase& example : {
           RunCase{.name = "1 rank"},
           RunCase{.name = "1 rank, tied, window", .mask = "window:left=5,right=0", .tied = true},
           RunCase{.name = "3 ranks", .world = 3},
           RunCase{.name = "gpt2, 1 rank, tied", .tied = true, .model = "gpt2"},
           RunCase{.name = "gpt2, 2 ranks, recomputed, 301 words",
           .world = 2,
           .mode = "full",
           .model = "gpt2",
           .words = 301},
           RunCase{.name = "gpt2, 3 ranks, attention kept, tied",
           .world = 3,
           .mode = "attention_output",
           .tied = true,
           .model = "gpt2"},
           RunCase{.name = "llama, 1 rank, tied", .tied = true, .model = "llama"},
           RunCase{
               .name = "llama, 3 ranks, recomputed", .world = 3, .mode = "full", .model = "llama"},
           RunCase{.name = "4 ranks, a window, attention kept",
           .world = 4,
           .strategy = "usp:u=2",
           .layout = "balanced",
           .mask = "window:left=5,right=0",
           .mode = "attention_output"},
       }) {
    const CountingText text;
    const Recipe recipe = run_recipe(example);
    const PackedText packed(text.documents, {.seq_len = kRunLen, .seed = 11});
    const std::vector<StepMetrics> expected = plain_run(recipe, text, packed);
    std::vector<StepMetrics> got;
    train(recipe, packed, {.on_step = [&](const StepMetrics& metrics) { got.push_back(metrics); }});
    ASSERT_EQ(got.size(), expected.size()) << example.name;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].step, expected[i].step) << example.name;
      EXPECT_NEAR(got[i].loss, expected[i].loss, 1e-5 * expected[i].loss)
          << example.name << " step " << i + 1;
      EXPECT_NEAR(got[i].grad_norm, expected[i].grad_norm, 1e-4 * expected[i].grad_norm)
          << example.name << " step " << i + 1;
    }
  }
}

/// A step of 2 sequences of 40 tokens on 2 ranks, full attention; rates are per rank.
TEST(TrainByHand, RatesAreOfTheTimeOfAStepAndOfTheOperationsOfTheModel) {
  Recipe recipe = run_recipe({.name = "rates", .world = 2, .mask = "full"});
  recipe.training.steps = 30;
  const CountingText text;
  using Clock = std::chrono::steady_clock;
  std::vector<StepMetrics> steps;
  std::vector<Clock::time_point> ends;
  train(recipe, PackedText(text.documents, {.seq_len = kRunLen, .seed = 0}),
        {.on_step = [&](const StepMetrics& metrics) {
          steps.push_back(metrics);
          ends.push_back(Clock::now());
        }});
  // A layer: wq and wo 32 x 32, wk and wv 16 x 32, w1 and w2 40 x 32; and the output, 257 x 32.
  const double matrices = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 2 * 40 * 32) + 257 * 32;
  const double pairs = 2 * 2 * 4 * 40 * 40;  // sequences, layers, heads, and pairs of 8 dims
  const double flops = 6 * matrices * 2 * 40 + 12 * 8 * pairs;
  double told = 0;
  std::size_t filled = 0;  // steps whose own time is most of the time between two ends
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(steps[i].tflops * 1e12 / steps[i].tps, flops / 80, 1e-6 * flops)
        << "step " << i + 1;
    ASSERT_TRUE(steps[i].mfu.has_value());
    EXPECT_NEAR(*steps[i].mfu / steps[i].tflops, *steps[0].mfu / steps[0].tflops,
                1e-9 * *steps[0].mfu / steps[0].tflops);
    if (i == 0) continue;
    const double of_step = 80 / (2 * steps[i].tps);
    told += of_step;
    const double between = std::chrono::duration<double>(ends[i] - ends[i - 1]).count();
    if (of_step >= 0.7 * between) ++filled;
  }
  const double passed = std::chrono::duration<double>(ends.back() - ends.front()).count();
  EXPECT_LE(told, 1.001 * passed);
  EXPECT_GT(filled, steps.size() / 2) << "a busy machine delays some, not most";
  // Other work on the machine makes two measurements differ, but not tenfold each time.
  const double peak_told = 100 * steps[0].tflops * 1e12 / *steps[0].mfu;
  double peak = 0;
  for (int tries = 0; tries < 5 && (peak_told > 10 * peak || peak > 10 * peak_told); ++tries) {
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      const double rate = measure_matmul_peak(comm, at::kFloat);
      if (comm.rank() == 0) peak = rate;
    });
  }
  EXPECT_LT(peak_told, 10 * peak);
  EXPECT_GT(peak_told, peak / 10);
}

}  // namespace
}  // namespace armillary::train
