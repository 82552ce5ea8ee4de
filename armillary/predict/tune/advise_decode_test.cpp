// advise_decode_test.cpp: meshes for decode that fit, in their order.
#include "armillary/predict/tune/advise_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/core/testing/expect_error.h"
#include "armillary/predict/cost/known_models.h"

namespace armillary::tune {
namespace {

cost::DecodeStep decode_of(const std::string& model, std::int64_t context,
                           std::int64_t sequences = 1) {
  return {.model = cost::parse_model(model), .context = context, .sequences = sequences};
}

TEST(AdviseDecode, GivesEveryMeshThatFitsTheFastestFirst) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const std::vector<DecodeMesh> meshes = advise_decode(decode_of("llama3-8b", 1 << 20), cluster, 8);
  ASSERT_FALSE(meshes.empty());
  EXPECT_TRUE(
      std::ranges::is_sorted(meshes, {}, [](const DecodeMesh& one) { return one.time.total(); }));
  for (const DecodeMesh& one : meshes) {
    EXPECT_EQ(one.mesh.ranks(), 8) << to_string(one);
    EXPECT_EQ(one.mesh.dp, 1) << to_string(one);
    EXPECT_GE(one.longest_context, 1 << 20) << to_string(one);
    EXPECT_LE(one.memory.total(), cluster.device.memory_bytes) << to_string(one);
  }
  // The tokens of one sequence are on all devices, by heads, positions or both.
  EXPECT_EQ(meshes.size(), 4U);
  EXPECT_THAT(to_json(meshes), testing::StartsWith(R"({"meshes":[{"dp":1,"cp":)"));
}

// 2 KV heads: one of them for each of 2 or 6 ranks, but not of 3.
TEST(AdviseDecode, RanksAlongTpShareKvHeads) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const std::string model = "layers=2,hidden=384,heads=6,kv_heads=2,ffn=1024,vocab=1000";
  std::vector<int> tp;
  for (const DecodeMesh& one : advise_decode(decode_of(model, 1024), cluster, 6)) {
    tp.push_back(one.mesh.tp);
  }
  EXPECT_THAT(tp, testing::UnorderedElementsAre(1, 2, 6));
}

TEST(AdviseDecode, SaysWhatFits) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  EXPECT_THAT(error_of([&] { advise_decode(decode_of("llama3-8b", 1 << 30), cluster, 4); }),
              testing::StartsWith("advise: 1 sequence of 1073741824 tokens do not fit 4 devices of "
                                  "c5; the longest that fits is "));
}

// Which of them a step reads is not priced.
TEST(AdviseDecode, RefusesExperts) {
  cost::DecodeStep step = decode_of("llama3-8b", 1024);
  step.model.expert_parameters = 1;
  EXPECT_THAT(error_of([&] { advise_decode(step, sim::load_cluster("c5"), 4); }),
              testing::HasSubstr("a model with experts"));
}

}  // namespace
}  // namespace armillary::tune
