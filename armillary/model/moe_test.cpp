// moe_test.cpp: the sizes in model/moe.h, the parameters of experts and their units, and sizes that
// are refused.
#include "armillary/model/moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/decoder_parameters.h"
#include "armillary/model/registry.h"

namespace armillary::model {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

ModelOptions small_moe() {
  ModelOptions model = default_options("moe");
  model.dim = 16;
  model.n_layers = 2;
  model.n_heads = 4;
  model.n_kv_heads = 2;
  model.num_experts = 6;
  model.moe_inter_dim = 10;
  return model;
}

TEST(Moe, Mixtral8x7BHasItsParameters) {
  ModelOptions model = default_options("moe");
  model.dim = 4096;
  model.n_layers = 32;
  model.n_heads = 32;
  model.n_kv_heads = 8;
  model.num_experts = 8;
  model.top_k = 2;
  model.moe_inter_dim = 14336;
  model.vocab_size = 32000;
  const cost::ModelCost cost = decoder_cost(moe_options(model));
  EXPECT_EQ(cost.parameters, 46702792704);
  // With norms and embedding 12.9 B a token.
  EXPECT_EQ(cost.matmul_parameters, 12879925248 - 65 * 4096 - 32000 * 4096);
}

TEST(Moe, CostCountsTheDeclaredParameters) {
  for (const std::int64_t shared : {0, 2}) {
    for (const double bias : {0.0, 0.001}) {
      ModelOptions model = small_moe();
      model.num_shared_experts = shared;
      model.load_balance_coeff = bias;
      const DecoderOptions options = decoder_options(model);
      const cost::ModelCost cost = decoder_cost(options);
      std::int64_t all = 0;
      std::int64_t experts = 0;
      const std::vector<Parameter> parameters = decoder_parameters(options);
      for (const Parameter& parameter : parameters) {
        const std::int64_t values = count_of_values(parameter.shape);
        all += values;
        experts += parameter.is_expert ? values : 0;
      }
      EXPECT_EQ(cost.parameters, all);
      EXPECT_EQ(cost.expert_parameters, experts);
      EXPECT_EQ(experts, 2 * 6 * 3 * 10 * 16);
      check_parameters(parameters, decoder_units(options), 2);
    }
  }
}

TEST(Moe, ExpertsAreUnitsOfTheirOwn) {
  const DecoderOptions options = decoder_options(small_moe());
  EXPECT_EQ(decoder_units(options),
            (std::vector<std::string>{"embedding", "layers.0", "layers.0.experts", "layers.1",
                                      "layers.1.experts", "head"}));
  std::vector<Parameter> parameters = decoder_parameters(options);
  const auto w1 = std::ranges::find(parameters, "layers.1.moe.experts.w1", &Parameter::name);
  ASSERT_NE(w1, parameters.end());
  EXPECT_EQ(w1->shape, (Shape{6, 10, 16}));
  EXPECT_EQ(expert_range_of(*w1, 1, 4).begin, (Shape{1, 0, 0}));
  EXPECT_EQ(expert_range_of(*w1, 1, 4).size, (Shape{2, 10, 16}));
  EXPECT_TRUE(range_of(*w1, 1, 2).is_whole());
  EXPECT_EQ(copies_along_tp(*w1, 2), 1);
  EXPECT_THAT([&] { expert_range_of(*w1, 0, 7); },
              ThrowsMessage<InvalidArgument>(HasSubstr("of 6 experts over ep 7; at most one rank "
                                                       "an expert is required; nearest: ep 6")));
  w1->units = {"layers.1"};
  EXPECT_THAT([&] { check_parameters(parameters, decoder_units(options), 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("owns experts and other parameters")));
}

TEST(Moe, MoreChoicesThanExpertsAreRefused) {
  ModelOptions model = small_moe();
  model.top_k = 7;
  EXPECT_THAT([&] { check_model(model); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "model.top_k 7 with model.num_experts 6; at most as many as there are experts "
                  "are required; nearest: top_k 6")));
}

}  // namespace
}  // namespace armillary::model
