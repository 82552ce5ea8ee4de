// mesh_test.cpp: shapes of models, pipelines, and advice. No time is measured; the costs of methods
// are in table2_test.cpp, what follows from them in tips_test.cpp.
#include "armillary/tune/mesh.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "armillary/core/error.h"
#include "armillary/tune/testing/questions.h"

namespace armillary::tune {
namespace {

using testing::advice_question;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Model, ShapesAreThosePublished) {
  EXPECT_NEAR(static_cast<double>(parse_model("llama2-7b").parameters), 6.74e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(parse_model("llama3-8b").parameters), 8.03e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(parse_model("llama3-70b").parameters), 70.6e9, 0.2e9);
  EXPECT_NEAR(static_cast<double>(parse_model("gpt3-175b").parameters), 175e9, 1e9);
  const NamedModel own = parse_model("layers=2,hidden=64,heads=4,ffn=128,vocab=100,gated=false");
  EXPECT_EQ(own.attention.kv_heads, 4);
  EXPECT_EQ(own.attention.head_dim, 16);
  EXPECT_EQ(own.layer_parameters, 2 * (4 * 64 * 64 + 2 * 64 * 128));
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
  EXPECT_LT(mesh_memory(step, {.tp = 4, .recompute = sim::Recompute::Full}, 0).stage.activations,
            mesh_memory(step, {.tp = 4}, 0).stage.activations);
}

TEST(Advise, PrefersReplicasWhileTheBatchDivides) {
  const Advice many = advise(advice_question("llama2-7b", "c5a", 4096, 8));  // tip 2
  EXPECT_EQ(many.meshes.front().mesh.dp * many.meshes.front().mesh.tp *
                many.meshes.front().mesh.cp * many.meshes.front().mesh.pp,
            8);
  EXPECT_GT(many.meshes.front().mesh.dp, 1);
  const Advice one = advise(advice_question("llama2-7b", "c5a", 32768, 1));
  EXPECT_EQ(one.meshes.front().mesh.dp, 1);
  EXPECT_GE(one.meshes.front().mesh.zero, 1);  // tip 3: 6.7e9 * 18 bytes do not fit otherwise
  // Each axis has a reason, and so has what can be changed alone.
  for (const char* part : {"dp 1: ", "cp ", "tp ", "pp "}) {
    EXPECT_THAT(one.reasons, ::testing::Contains(StartsWith(part)));
  }
  for (const char* policy : {"full", "attention_output"}) {
    const std::string reason = fmt::format("recomputation none, not {}: otherwise ", policy);
    EXPECT_THAT(one.reasons, ::testing::Contains(StartsWith(reason)));
  }
  EXPECT_THAT(one.reasons,
              ::testing::Contains(AllOf(StartsWith("ZeRO-"), HasSubstr(", not 0: otherwise "))));
}

/// The same mesh under each policy: `full` attends forward twice and keeps inputs alone,
/// `attention_output` keeps another A a layer and attends no more, of a ring without a message.
TEST(Advise, TimeAndMemoryAreOfOnePolicy) {
  AdviceQuestion question = advice_question("llama2-7b", "c6", 65536, 1);
  question.devices = 4;
  question.cluster.device.memory_bytes = 1e15;
  std::map<sim::Recompute, const Advised*> found;
  const Advice advice = advise(question);
  for (const Advised& advised : advice.meshes) {
    const Mesh mesh{.cp = 4, .zero = 1, .recompute = advised.mesh.recompute};
    if (advised.mesh == mesh) found[mesh.recompute] = &advised;
  }
  ASSERT_EQ(found.size(), 3);
  const Advised& none = *found[sim::Recompute::None];
  const Advised& full = *found[sim::Recompute::Full];
  const Advised& output = *found[sim::Recompute::AttentionOutput];
  const double a = 2.0 * 4096 * 65536 / 4;
  EXPECT_DOUBLE_EQ(full.memory.stage.activations, 32 * a);
  EXPECT_DOUBLE_EQ(output.memory.stage.activations, 64 * a);
  EXPECT_DOUBLE_EQ(full.time.stage.products, output.time.stage.products);
  // Forward has 2 products of each pair, backward 5.
  EXPECT_NEAR(full.time.stage.attention / none.time.stage.attention, 9.0 / 7, 0.05);
  EXPECT_LT(output.time.stage.attention, 1.05 * none.time.stage.attention);
}

TEST(Advise, TimesAndMemoryAreSums) {
  const Advice advice = advise(advice_question("llama3-8b", "c5", 65536, 2));
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
    advise(advice_question("gpt3-175b", "c6", 8192, 1));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not fit: needs "));
    EXPECT_THAT(error.what(), HasSubstr("the longest sequence that fits is 0"));
  }
}

TEST(MeshMemory, PrefillKeepsKAndVOfSequencesThatHaveLeft) {
  StepShape step{.model = parse_model("llama3-8b"), .seq = 8192, .kind = sim::StepKind::Prefill};
  const Mesh mesh{.cp = 4};
  const double one = mesh_memory(step, mesh, 0).stage.activations;
  step.batch = 3;
  const double three = mesh_memory(step, mesh, 0).stage.activations;
  EXPECT_DOUBLE_EQ(three - one, 2 * 2.0 * 2 * 32 * 8 * 128 * 2048) << "not what layers share";
}

}  // namespace
}  // namespace armillary::tune
