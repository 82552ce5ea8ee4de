// llama_test.cpp: the sizes in model/llama.h, and sizes that are refused.
#include "armillary/model/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"
#include "armillary/model/decoder_cost.h"

namespace armillary::model {
namespace {

ModelOptions llama(std::int64_t dim, std::int64_t multiple_of, double multiplier) {
  ModelOptions model;
  model.name = "llama";
  model.dim = dim;
  model.multiple_of = multiple_of;
  model.ffn_dim_multiplier = multiplier;
  return model;
}

TEST(Llama, FeedForwardsAreThoseOfPublishedWeights) {
  EXPECT_EQ(llama_options(llama(4096, 256, 1)).hidden_dim(), 11008);      // 2 7B
  EXPECT_EQ(llama_options(llama(5120, 256, 1)).hidden_dim(), 13824);      // 2 13B
  EXPECT_EQ(llama_options(llama(8192, 4096, 1.3)).hidden_dim(), 28672);   // 2 and 3 70B
  EXPECT_EQ(llama_options(llama(4096, 1024, 1.3)).hidden_dim(), 14336);   // 3 8B
  EXPECT_EQ(llama_options(llama(16384, 4096, 1.2)).hidden_dim(), 53248);  // 3 405B
  ModelOptions options = llama(4096, 256, 1);
  options.hidden_dim = 7;
  EXPECT_EQ(llama_options(options).hidden_dim(), 7);
}

TEST(Llama, EightBillionParametersButForTheVocabulary) {
  ModelOptions model = llama(4096, 1024, 1.3);
  model.n_layers = 32;
  model.n_heads = 32;
  model.n_kv_heads = 8;
  const DecoderOptions options = llama_options(model).vocab_size(128256);
  EXPECT_EQ(decoder_cost(options).parameters, 8030261248);
}

TEST(Llama, AFeedForwardThatIsNoWidthIsRefused) {
  EXPECT_THAT([] { llama_options(llama(128, 256, 1e9)); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("nearest: model.hidden_dim 2147483647")));
  EXPECT_THAT(
      [] { llama_options(llama(128, 256, 1e-9)); },
      testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("nearest: model.hidden_dim 256")));
}

}  // namespace
}  // namespace armillary::model
