// mesh_test.cpp: shapes of models, USP's Table 2, rates of groups, and the advice made of them. No
// time is measured.
#include "armillary/tune/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/tune/advise.h"

namespace armillary::tune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

AdviceQuestion asked(const std::string& model, const std::string& cluster, std::int64_t seq,
                     std::int64_t batch) {
  return {.step = {.model = parse_model(model), .seq = seq, .batch = batch},
          .cluster = sim::load_cluster(cluster),
          .mask = [](std::int64_t n) {
            return plan::causal_mask({n, n}, plan::Align::Start);
          }};
}

MethodCost method(const StepShape& step, int devices, const std::string& name) {
  const std::vector<MethodCost> all = method_costs(step, devices);
  return *std::find_if(all.begin(), all.end(),
                       [&](const MethodCost& cost) { return cost.method == name; });
}

TEST(Model, ShapesAreThosePublished) {
  EXPECT_NEAR(parse_model("llama2-7b").parameters(), 6.74e9, 0.01e9);
  EXPECT_NEAR(parse_model("llama3-8b").parameters(), 8.03e9, 0.01e9);
  EXPECT_NEAR(parse_model("llama3-70b").parameters(), 70.6e9, 0.2e9);
  EXPECT_NEAR(parse_model("gpt3-175b").parameters(), 175e9, 1e9);
  const NamedShape own = parse_model("layers=2,hidden=64,heads=4,ffn=128,vocab=100,gated=false");
  EXPECT_EQ(own.kv_heads, 4);
  EXPECT_EQ(own.head_dim, 16);
  EXPECT_DOUBLE_EQ(own.layer_parameters(), 4 * 64 * 64 + 2 * 64 * 128);
}

TEST(Model, TextsThatAreNone) {
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
}

// Table 2 of USP (arXiv:2405.07719, section 4), for large n: 2 elements for each parameter of an
// all-reduce, 3 with ZeRO-3; 8 activations for TP; with as many KV heads 8 / n for Ulysses.
TEST(Methods, AreTheTableOfUsp) {
  const StepShape step{.model = parse_model("llama2-7b"), .seq = 1 << 16};
  const int n = 64;
  const double share = (n - 1.0) / n;
  const double p = step.model.layer_parameters();
  const double hidden = static_cast<double>(step.seq) * step.model.hidden;
  EXPECT_DOUBLE_EQ(method(step, n, "DP").parameter_elements, 2 * p * share);
  EXPECT_DOUBLE_EQ(method(step, n, "SP-Ulysses + ZeRO-3").parameter_elements, 3 * p * share);
  EXPECT_DOUBLE_EQ(method(step, n, "SP-Ulysses").activation_elements, 8 * hidden / n * share);
  EXPECT_DOUBLE_EQ(method(step, n, "TP-sp").activation_elements, 8 * hidden * share);
  EXPECT_DOUBLE_EQ(method(step, n, "TP").parameter_elements, 0);
  EXPECT_GT(method(step, n, "TP").activation_bytes, method(step, n, "TP-sp").activation_bytes);
  EXPECT_DOUBLE_EQ(method(step, n, "SP-Ulysses + ZeRO-1").optimizer_bytes,
                   method(step, n, "DP").optimizer_bytes / n);
  // Tip 4: fewer KV heads make SP cheaper, and TP not.
  const StepShape grouped{.model = parse_model("llama3-8b"), .seq = 1 << 16};
  EXPECT_LT(method(grouped, n, "SP-Ulysses").activation_elements,
            method(step, n, "SP-Ulysses").activation_elements);
  EXPECT_DOUBLE_EQ(method(grouped, n, "TP").activation_elements,
                   method(step, n, "TP").activation_elements);
}

// Two stages without replicas: half of the layers each, and one idle stage for one sequence.
TEST(Mesh, StagesWaitForEachOther) {
  const StepShape step{.model = parse_model("llama2-7b"), .seq = 1 << 14, .batch = 4};
  const sim::Cluster cluster = sim::load_cluster("c6");
  const MeshTime one = mesh_time(step, {.tp = 4}, cluster, 0.01);
  const MeshTime two = mesh_time(step, {.tp = 4, .pp = 2}, cluster, 0.01);
  EXPECT_DOUBLE_EQ(one.pipeline, 0);
  EXPECT_DOUBLE_EQ(two.stage.attention, one.stage.attention / 2);
  EXPECT_GT(two.pipeline, (two.stage.products + two.stage.attention) / 4);
  // Two sequences are under way on the first stage, so it holds what one stage alone would.
  EXPECT_DOUBLE_EQ(mesh_memory(step, {.tp = 4, .pp = 2}, 0).stage.activations,
                   mesh_memory(step, {.tp = 4}, 0).stage.activations);
  EXPECT_LT(mesh_memory(step, {.tp = 4, .recompute = true}, 0).stage.activations,
            mesh_memory(step, {.tp = 4}, 0).stage.activations);
}

TEST(Advise, PrefersReplicasWhileTheBatchDivides) {
  const Advice many = advise(asked("llama2-7b", "c5a", 4096, 8));  // tip 2
  EXPECT_EQ(many.meshes.front().mesh.dp * many.meshes.front().mesh.tp *
                many.meshes.front().mesh.cp * many.meshes.front().mesh.pp,
            8);
  EXPECT_GT(many.meshes.front().mesh.dp, 1);
  const Advice one = advise(asked("llama2-7b", "c5a", 32768, 1));
  EXPECT_EQ(one.meshes.front().mesh.dp, 1);
  EXPECT_GE(one.meshes.front().mesh.zero, 1);  // tip 3: 6.7e9 * 18 bytes do not fit otherwise
  // Each axis has a reason, and so has what can be changed alone.
  for (const char* part : {"dp 1: ", "cp ", "tp ", "pp "}) {
    EXPECT_THAT(one.reasons, ::testing::Contains(StartsWith(part)));
  }
  EXPECT_THAT(one.reasons, ::testing::Contains(HasSubstr("recomputation: ")));
  EXPECT_THAT(one.reasons,
              ::testing::Contains(AllOf(StartsWith("ZeRO-"), HasSubstr(", not 0: otherwise "))));
}

TEST(Advise, TimesAndMemoryAreSums) {
  const Advice advice = advise(asked("llama3-8b", "c5", 65536, 2));
  double last = 0;
  for (const Advised& advised : advice.meshes) {
    EXPECT_GE(advised.time.total(), last);
    last = advised.time.total();
    EXPECT_LE(advised.memory.total(), 80.0 * (1 << 30));
    EXPECT_GE(advised.longest_seq, 65536);
    EXPECT_LE(advised.longest_seq, advice.longest.longest_seq);
    const Cut cut = cut_of(advised.attention.strategy, advised.mesh.cp);
    EXPECT_EQ(cut.u * cut.rq * cut.rk, advised.mesh.cp);
  }
  EXPECT_THAT(to_json(advice), HasSubstr(R"("longest_seq":)"));
  EXPECT_THAT(advice.reasons, ::testing::Contains(HasSubstr("otherwise it needs ")));
}

TEST(Advise, SaysWhenNothingFits) {
  try {
    advise(asked("gpt3-175b", "c6", 8192, 1));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not fit: needs "));
    EXPECT_THAT(error.what(), HasSubstr("the longest sequence that fits is 0"));
  }
}

}  // namespace
}  // namespace armillary::tune
