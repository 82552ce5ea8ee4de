#include "armillary/predict/cost/known_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::cost {
namespace {

using ::testing::HasSubstr;

TEST(KnownModels, ShapesAreThosePublished) {
  EXPECT_NEAR(static_cast<double>(parse_model("llama2-7b").parameters), 6.74e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(parse_model("llama3-8b").parameters), 8.03e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(parse_model("llama3-70b").parameters), 70.6e9, 0.2e9);
  EXPECT_NEAR(static_cast<double>(parse_model("llama3-405b").parameters), 405.8e9, 0.2e9);
  EXPECT_NEAR(static_cast<double>(parse_model("gpt3-175b").parameters), 175e9, 1e9);
  const ModelCost own = parse_model("layers=2,hidden=64,heads=4,ffn=128,vocab=100,gated=false");
  EXPECT_EQ(own.attention.kv_heads, 4);
  EXPECT_EQ(own.attention.head_dim, 16);
  EXPECT_EQ(own.layer_parameters, 2 * (4 * 64 * 64 + 2 * 64 * 128));
}

// A shape leaves the loss whole and keeps what is in layers; `advise` computes it in chunks, and
// keeps its input.
TEST(KnownModels, ChunksOfTheLossAndItsInputAreOfTheCostAlone) {
  const ModelCost whole = cost_of(parse_shape("llama3-8b"));
  const ModelCost chunked = parse_model("llama3-8b");
  EXPECT_GT(whole.loss_chunk_tokens, 1 << 20);
  EXPECT_EQ(chunked.loss_chunk_tokens, 1024);
  EXPECT_EQ(whole.parameters, chunked.parameters);
  EXPECT_EQ(whole.bytes.layer, chunked.bytes.layer);
  EXPECT_EQ(whole.bytes.last, 0);
  EXPECT_EQ(chunked.bytes.last, chunked.bytes.input);
  EXPECT_EQ(kept_bytes(chunked, Recompute::Full, 10), (32 + 1) * 10.0 * 2 * 4096);
}

TEST(KnownModels, TextsThatAreNone) {
  const auto refusal = [](const std::string& text) {
    try {
      parse_model(text);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal("llama3-8"), HasSubstr("nearest: llama3-8b"));
  EXPECT_THAT(refusal("layers=2"), HasSubstr("hidden"));
  EXPECT_THAT(refusal("layers=2,hiden=4"), HasSubstr("hiden"));
  EXPECT_THAT(refusal("layers=0,hidden=4,heads=1,ffn=4,vocab=9"), HasSubstr("layers"));
  const std::string uneven = "layers=12,hidden=768,heads=7,ffn=3072,vocab=50257";
  EXPECT_THAT(refusal(uneven), HasSubstr("hidden=768 and heads=7 given without head_dim; a "
                                         "multiple of the heads, or head_dim, is required; "
                                         "nearest: hidden=770"));
  EXPECT_EQ(refusal(uneven + ",head_dim=128"), "");
  const std::string most = "2147483647";
  EXPECT_THAT(refusal("layers=" + most + ",hidden=" + most + ",heads=" + most + ",ffn=" + most +
                      ",vocab=" + most + ",head_dim=" + most),
              HasSubstr(" parameters; fewer than 2^59 are required"));
}

}  // namespace
}  // namespace armillary::cost
