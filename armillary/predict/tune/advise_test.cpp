// advise_test.cpp: no time is measured; the costs that advice compares are in cost/, what follows
// from them in tips_test.cpp.
#include "armillary/predict/tune/advise.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "armillary/core/error.h"
#include "armillary/predict/tune/testing/questions.h"

namespace armillary::tune {
namespace {

using testing::advice_question;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Advise, PrefersReplicasWhileTheBatchDivides) {
  const Advice many = advise(advice_question("llama2-7b", "c5a", 4096, 8));  // tip 2
  EXPECT_EQ(many.meshes.front().parallelism.mesh.ranks(), 8);
  EXPECT_GT(many.meshes.front().parallelism.mesh.dp, 1);
  const Advice one = advise(advice_question("llama2-7b", "c5a", 32768, 1));
  EXPECT_EQ(one.meshes.front().parallelism.mesh.dp, 1);
  EXPECT_GE(one.meshes.front().parallelism.zero,
            1);  // tip 3: 6.7e9 * 18 bytes do not fit otherwise
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
/// `attention_output` keeps another A a layer and attends no more, of a ring without a message. The
/// input of the loss is one more A.
TEST(Advise, TimeAndMemoryAreOfOnePolicy) {
  AdviceQuestion question = advice_question("llama2-7b", "c6", 65536, 1);
  question.devices = 4;
  question.cluster.device.memory_bytes = 1e15;
  std::map<cost::Recompute, const Advised*> items;
  const Advice advice = advise(question);
  for (const Advised& advised : advice.meshes) {
    const cost::Parallelism mesh{
        .mesh = {.cp = 4}, .zero = 1, .recompute = advised.parallelism.recompute};
    if (advised.parallelism == mesh) items[mesh.recompute] = &advised;
  }
  ASSERT_EQ(items.size(), 3);
  const Advised& none = *items[cost::Recompute::None];
  const Advised& full = *items[cost::Recompute::Full];
  const Advised& output = *items[cost::Recompute::AttentionOutput];
  const double a = 2.0 * 4096 * 65536 / 4;
  EXPECT_DOUBLE_EQ(full.memory.activations, 33 * a);
  EXPECT_DOUBLE_EQ(output.memory.activations, 65 * a);
  EXPECT_DOUBLE_EQ(full.time.products, output.time.products);
  // Forward has 2 products of each pair, backward 5.
  EXPECT_NEAR(full.time.attention / none.time.attention, 9.0 / 7, 0.05);
  EXPECT_LT(output.time.attention, 1.05 * none.time.attention);
}

TEST(Advise, PassesOfSeveralSequencesDivideTheBatchAndHoldMore) {
  AdviceQuestion question = advice_question("llama2-7b", "c6", 4096, 8);
  question.devices = 4;
  question.cluster.device.memory_bytes = 1e15;
  const auto first_with_cp4 = [](const Advice& advice) {
    const cost::Parallelism mesh{.mesh = {.cp = 4}, .zero = 1};
    return *std::ranges::find_if(advice.meshes, [&](const Advised& advised) {
      cost::Parallelism alike = advised.parallelism;
      alike.microbatch = mesh.microbatch;
      return alike == mesh;
    });
  };
  const Advised one = first_with_cp4(advise(question));
  question.microbatch = 4;
  const Advice advice = advise(question);
  for (const Advised& advised : advice.meshes) {
    EXPECT_EQ(advised.parallelism.microbatch, 4);
    EXPECT_LE(advised.parallelism.mesh.dp, 2);
  }
  const Advised four = first_with_cp4(advice);
  // Strategies that trade heads keep attention's output once more in each of the 32 layers.
  const auto without_copies = [](const Advised& advised, double tokens) {
    const bool trades_heads = cut_of(advised.attention.strategy, 4).u > 1;
    return advised.memory.activations - (trades_heads ? 32 * 2.0 * 4096 * tokens : 0);
  };
  EXPECT_DOUBLE_EQ(without_copies(four, 4096), 4 * without_copies(one, 1024));
  EXPECT_LE(four.time.attention, 1.01 * one.time.attention);
  question.microbatch = 3;
  EXPECT_THAT([&] { advise(question); }, ::testing::ThrowsMessage<InvalidArgument>(
                                             HasSubstr("divides 8 sequences in passes of 3, ")));
}

TEST(Advise, SequencesOfAPassAreSearchedAndPricedAsDocuments) {
  AdviceQuestion question = advice_question("llama2-7b", "c6", 4096, 8);
  question.devices = 4;
  question.cluster.device.memory_bytes = 1e15;
  question.microbatch = 0;
  const Advice advice = advise(question);
  std::map<std::int64_t, double> attention;
  for (const Advised& advised : advice.meshes) {
    const cost::Parallelism& of = advised.parallelism;
    EXPECT_EQ(8 % (of.mesh.dp * of.microbatch), 0);
    EXPECT_TRUE(of.mesh.pp == 1 || of.microbatch == 1);
    if (of.mesh.cp == 4) attention.try_emplace(of.microbatch, advised.time.attention);
  }
  ASSERT_EQ(attention.size(), 4);  // 1, 2, 4, 8
  // Each sequence sees itself only: joined ones have no pairs more, and fewer keys travel.
  EXPECT_LE(attention[8], 1.01 * attention[1]);
  EXPECT_THAT(to_json(advice), HasSubstr(R"("local_batch_size":8)"));
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
    const Cut cut = cut_of(advised.attention.strategy, advised.parallelism.mesh.cp);
    EXPECT_EQ(cut.u * cut.rq * cut.rk, advised.parallelism.mesh.cp);
  }
  EXPECT_THAT(to_json(advice), HasSubstr(R"("longest_seq":)"));
  EXPECT_THAT(advice.reasons, ::testing::Contains(HasSubstr("otherwise it needs ")));
}

TEST(Advise, LeavesOutMeshesThatTheQuestionRefuses) {
  AdviceQuestion question = advice_question("llama2-7b", "c6", 4096, 1);
  question.cluster.device.memory_bytes = 1e15;
  // Units before and behind the layers, which known models do not tell apart.
  question.step.model.first_parameters = question.step.model.last_parameters =
      std::int64_t{32000} * 4096;
  const auto gathered = [](const Advice& advice) {
    const cost::Parallelism mesh{.mesh = {.cp = 8}, .zero = 3};
    return std::ranges::find_if(advice.meshes,
                                [&](const Advised& advised) {
                                  cost::Parallelism alike = advised.parallelism;
                                  alike.reshard_after_forward = mesh.reshard_after_forward;
                                  return alike == mesh;
                                })
        ->memory.gathered;
  };
  const double freed = gathered(advise(question));
  question.reshard_after_forward = false;
  question.check = [](const cost::Parallelism& parallelism) {
    EXPECT_FALSE(parallelism.reshard_after_forward);
    if (parallelism.zero < 3) fail<InvalidArgument>("a key needs stage 3");
  };
  const Advice advice = advise(question);
  for (const Advised& advised : advice.meshes) EXPECT_EQ(advised.parallelism.zero, 3);
  EXPECT_GT(gathered(advice), 2 * freed) << "whole parameters of all layers stay";
  question.devices = 1;  // Stage 0 alone.
  EXPECT_THAT([&] { advise(question); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(
                  "advise: no mesh of 1 device obeys every key that is set: a key needs stage 3")));
}

TEST(Advise, MoreRanksAlongTpThanKvHeadsShareThem) {
  const auto degrees = [](int kv_heads) {
    const AdviceQuestion question = advice_question(
        fmt::format("layers=2,hidden=512,heads=16,ffn=1024,vocab=1000,kv_heads={}", kv_heads), "c6",
        4096, 1);
    std::set<int> tp;
    for (const Advised& advised : advise(question).meshes) tp.insert(advised.parallelism.mesh.tp);
    return tp;
  };
  for (const int kv_heads : {1, 2, 16}) {
    EXPECT_THAT(degrees(kv_heads), ::testing::ElementsAre(1, 2, 4, 8)) << kv_heads;
  }
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

}  // namespace
}  // namespace armillary::tune
