// inference_test.cpp: a prompt that is read and continued: terms against closed forms, what ranks
// share, the longest prompt, and what is refused.
#include "armillary/predict/cost/inference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "armillary/core/testing/expect_error.h"
#include "armillary/predict/cost/known_models.h"

namespace armillary::cost {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Inference inference_of(const char* model, std::int64_t prompt, int cp = 1, int tp = 1) {
  return {.model = parse_model(model),
          .prompt = prompt,
          .cp = cp,
          .tp = tp,
          .strategy = plan::parse_strategy("ring"),
          .layout = plan::parse_layout("zigzag")};
}

TEST(Inference, HasTheTermsOfBothPhases) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const Inference of = inference_of("llama3-8b", 65'536);
  const InferenceCost cost = inference_cost(of, cluster);
  const ModelCost& model = of.model;
  // Every token goes through the layers, the last alone through the output matrix.
  const auto layers = static_cast<double>(model.layer_matmul_parameters);
  const double output = static_cast<double>(model.matmul_parameters) - layers;
  EXPECT_DOUBLE_EQ(cost.prefill.products,
                   2 * (layers * 65'536 + output) / cluster.device.matmul_flops_per_s);
  EXPECT_EQ(cost.prefill.gradients + cost.prefill.optimizer + cost.prefill.tensor_parallel, 0);
  EXPECT_EQ(cost.decode.total(),
            decode_time({.model = model, .context = 65'536}, {}, cluster).total());
  EXPECT_EQ(cost.cache_bytes, 65'536.0 * 131'072);
  EXPECT_GT(cost.memory.activations, cost.cache_bytes);
}

// Visible pairs alone, at the rates of the kernels: 668 TFLOP/s of full blocks at most.
TEST(Inference, AMillionTokensTakeWhatTheirPairsTake) {
  const InferenceCost cost =
      inference_cost(inference_of("llama3-70b", 1 << 20, 16, 8), sim::load_cluster("c1:nodes=16"));
  const double pairs = 0.5 * (1 << 20) * (1 << 20);
  const double least = 4 * 128.0 * 64 * pairs * 80 / 128 / 668e12;
  EXPECT_GT(cost.prefill.attention, least);
  EXPECT_LT(cost.prefill.attention, 1.1 * least);
  EXPECT_EQ(cost.cache_bytes, 65'536.0 * 80 * 2 * 128 * 2);  // A KV head each.
}

TEST(Inference, RanksShareTokensAndHeads) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const InferenceCost alone = inference_cost(inference_of("llama3-8b", 65'536), cluster);
  const InferenceCost spread = inference_cost(inference_of("llama3-8b", 65'536, 4), cluster);
  const InferenceCost heads = inference_cost(inference_of("llama3-8b", 65'536, 1, 4), cluster);
  EXPECT_EQ(spread.cache_bytes, alone.cache_bytes / 4);
  EXPECT_EQ(heads.cache_bytes, alone.cache_bytes / 4);
  EXPECT_EQ(spread.memory.parameters, alone.memory.parameters);
  EXPECT_EQ(heads.memory.parameters, alone.memory.parameters / 4);
  EXPECT_EQ(spread.decode.matrices, alone.decode.matrices);
  EXPECT_GT(spread.prefill.attention, alone.prefill.attention / 4);
  EXPECT_LT(spread.prefill.attention, alone.prefill.attention / 2);
  EXPECT_GT(heads.prefill.tensor_parallel, 0);
}

TEST(Inference, LongestPromptFitsAndNoLonger) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  Inference of = inference_of("llama3-8b", 65'536, 4);
  const InferenceCost cost = inference_cost(of, cluster);
  ASSERT_GT(cost.longest_prompt, 65'536);
  // Shorter passes leave room for more.
  EXPECT_GT(cost.longest_context, cost.longest_prompt);
  constexpr std::int64_t kGrain = 4096;
  of.prompt = cost.longest_prompt / kGrain * kGrain;
  check_inference_fits("mine", of, inference_cost(of, cluster), cluster);
  of.prompt += 2 * kGrain;
  const InferenceCost longer = inference_cost(of, cluster);
  const std::string error = error_of([&] { check_inference_fits("mine", of, longer, cluster); });
  EXPECT_THAT(error, StartsWith("mine: 1 sequence of "));
  EXPECT_THAT(error, HasSubstr("does not fit: needs "));
  EXPECT_THAT(error, HasSubstr(", the longest prompt that fits is "));
}

TEST(Inference, IsOneObject) {
  const Inference of = inference_of("llama3-8b", 4096, 2, 2);
  const InferenceCost cost = inference_cost(of, sim::load_cluster("c5"));
  const auto json = nlohmann::json::parse(to_json(of, cost));
  EXPECT_EQ(json["time_to_first_token_s"]["total"], cost.prefill.total());
  EXPECT_EQ(json["time_per_token_s"]["exchange"], cost.decode.exchange);
  EXPECT_EQ(json["longest_prompt"], cost.longest_prompt);
  EXPECT_EQ(json["layout"], "zigzag");
}

TEST(Inference, RefusesWhatItCannotBe) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const auto refusal = [&](const Inference& of) {
    return error_of([&] { inference_cost(of, cluster); });
  };
  EXPECT_THAT(refusal(inference_of("llama3-8b", 0)), HasSubstr("tokens 0 given; at least 1"));
  EXPECT_THAT(refusal(inference_of("llama3-8b", 8, 0)), HasSubstr("cp 0 given; at least 1"));
  EXPECT_THAT(refusal(inference_of("llama3-8b", 8, 1, 3)), HasSubstr("nearest: 2"));
  EXPECT_THAT(refusal(inference_of("llama3-8b", 8, 1, 16)), HasSubstr("nearest: 8"));
  EXPECT_THAT(refusal(inference_of("llama3-8b", 8, 64)), HasSubstr("64 devices asked for; c5 has"));
  Inference experts = inference_of("llama3-8b", 8);
  experts.model.expert_parameters = 1;
  EXPECT_THAT(refusal(experts), HasSubstr("a model with experts"));
  Inference balanced = inference_of("llama3-8b", 4096, 4);
  balanced.layout = plan::parse_layout("balanced");
  EXPECT_THAT(refusal(balanced), HasSubstr("layout balanced given"));
}

}  // namespace
}  // namespace armillary::cost
