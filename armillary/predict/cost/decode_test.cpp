// decode_test.cpp: bytes and seconds of decode against closed forms; what grows with the context
// and what does not.
#include "armillary/predict/cost/decode.h"

#include <gtest/gtest.h>

#include "armillary/core/testing/expect_error.h"
#include "armillary/predict/cost/known_models.h"

namespace armillary::cost {
namespace {

const ModelCost kLlama8b = parse_model("llama3-8b");

DecodeStep step_of(std::int64_t context, std::int64_t sequences = 1) {
  return {.model = kLlama8b, .context = context, .sequences = sequences};
}

/// 2 L G D elements of 2 bytes: Llama 3 8B, and SmolLM2 135M.
TEST(Decode, CountsTheBytesOfATokenInTheCache) {
  EXPECT_EQ(cache_bytes_of_token(kLlama8b), 131'072);
  EXPECT_EQ(cache_bytes_of_token(parse_model("layers=30,hidden=576,heads=9,kv_heads=3,head_dim=64,"
                                             "ffn=1536,vocab=49152")),
            23'040);
  EXPECT_EQ(cache_bytes_of_token(kLlama8b, 4), 131'072 / 4);
  EXPECT_EQ(cache_bytes_of_token(kLlama8b, 16), 131'072 / 8);  // Copies of heads.
}

// Each of 8 KV heads is on 2 of 16 ranks, with the matrices that make its K and V.
TEST(Decode, CountsCopiesOfKvHeadsAlongTp) {
  const auto parameters = static_cast<double>(kLlama8b.parameters);
  const double copies = 32.0 * 2 * 4096 * 1024;
  EXPECT_DOUBLE_EQ(decode_memory(step_of(0), {.tp = 8}).parameters, 2 * parameters / 8);
  EXPECT_DOUBLE_EQ(decode_memory(step_of(0), {.tp = 16}).parameters,
                   2 * (parameters + copies) / 16);
}

TEST(Decode, MessagesDoNotGrowWithTheContext) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const MeshShape mesh{.cp = 4, .tp = 2};
  const DecodeTime few = decode_time(step_of(1024), mesh, cluster);
  const DecodeTime many = decode_time(step_of(1 << 20), mesh, cluster);
  EXPECT_EQ(few.exchange, many.exchange);
  EXPECT_EQ(few.tensor_parallel, many.tensor_parallel);
  EXPECT_EQ(few.matrices, many.matrices);
  EXPECT_DOUBLE_EQ(many.cache, few.cache * 1024);
  EXPECT_GT(few.exchange, 0);
  EXPECT_GT(few.tensor_parallel, 0);
}

TEST(Decode, ReadsMemoryOnce) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const double memory = cluster.device.memory_bytes_per_s;
  const DecodeTime alone = decode_time(step_of(65'536), {}, cluster);
  EXPECT_DOUBLE_EQ(alone.matrices, 2.0 * static_cast<double>(kLlama8b.matmul_parameters) / memory);
  EXPECT_DOUBLE_EQ(alone.cache, 65'536.0 * 131'072 / memory);
  EXPECT_EQ(alone.exchange + alone.tensor_parallel, 0);
  // Products of many sequences are bound by arithmetic; replicas share the sequences.
  const DecodeTime batch = decode_time(step_of(10, 100'000), {}, cluster);
  EXPECT_DOUBLE_EQ(batch.matrices, 2.0 * static_cast<double>(kLlama8b.matmul_parameters) * 100'000 /
                                       cluster.device.matmul_flops_per_s);
  EXPECT_DOUBLE_EQ(decode_time(step_of(4096, 4), {.dp = 4}, cluster).cache,
                   decode_time(step_of(4096, 1), {}, cluster).cache);
}

TEST(Decode, LongestContextFitsAndNoLonger) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  for (const MeshShape& mesh : {MeshShape{}, MeshShape{.cp = 4}, MeshShape{.cp = 2, .tp = 4}}) {
    const std::int64_t longest = longest_context(step_of(0, 2), mesh, cluster);
    ASSERT_GT(longest, 0);
    EXPECT_LE(decode_memory(step_of(longest, 2), mesh).total(), cluster.device.memory_bytes);
    EXPECT_GT(decode_memory(step_of(longest + mesh.cp, 2), mesh).total(),
              cluster.device.memory_bytes);
  }
  DecodeStep large = step_of(0);
  large.model = parse_model("llama3-70b");
  EXPECT_EQ(longest_context(large, {}, cluster), 0);
}

TEST(Decode, RefusesMoreRanksThanDevices) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  EXPECT_EQ(error_of([&] { decode_time(step_of(8), {.cp = 100'000}, cluster); }).substr(0, 38),
            "decode: 100000 devices asked for; c5 h");
}

}  // namespace
}  // namespace armillary::cost
