// rates_test.cpp: the rates and counts of kernels, merges and layers mean what their headers say.
// Whether they are fast is measured by ./dev bench.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/testing/run_folder.h"
#include "armillary/lab/bench/collectives_rate.h"
#include "armillary/lab/bench/kernel_rate.h"
#include "armillary/lab/bench/layer.h"
#include "armillary/lab/bench/layer_rate.h"
#include "armillary/lab/bench/merge_rate.h"
#include "armillary/lab/bench/overlap_rate.h"
#include "armillary/lab/bench/ranks.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary::bench {
namespace {

/// Flops or bytes of one run of a side: its rate in billions a second, times the seconds around the
/// run. Those are never fewer than the side's own, and hardly more in a run that nobody disturbs.
double work_of(const Side& side) {
  double least = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < 20; ++turn) {
    double rate = 0;
    const double seconds = seconds_of([&] { rate = side.run(); });
    least = std::min(least, rate * 1e9 * seconds);
  }
  return least;
}

constexpr std::int64_t kTokens = 256;

const plan::Problem& small_problem() {
  static const plan::Problem problem{.world = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 64,
                                     .value_dim = 64,
                                     .dtype = plan::Dtype::F32,
                                     .mask = plan::parse_mask("causal", {kTokens, kTokens})};
  return problem;
}

Sample small_sample() {
  return sample(
      {.q_tokens = kTokens, .k_tokens = kTokens, .heads = 4, .kv_heads = 2, .head_dim = 64});
}

TEST(KernelRate, IsOfTheFlopsOfVisiblePairs) {
  KernelRate rate({.head_dim = 32, .tokens = 256, .heads = 2, .kv_heads = 1});
  const double flops = 4.0 * 32 * 2 * 256 * 257 / 2;
  EXPECT_DOUBLE_EQ(rate.facts().flops, flops);
  for (const Side& side : rate.sides()) {
    if (side.name == "peak") continue;
    const double work = work_of(side);
    EXPECT_GE(work, 0.999 * flops) << side.name;
    EXPECT_LE(work, 1.25 * flops) << side.name;
  }
}

TEST(MergeRate, IsOfTheTensorsReadAndWritten) {
  MergeRate rate({.tokens = 1024, .heads = 8, .head_dim = 64});
  EXPECT_EQ(rate.tensor_bytes(), 1024 * 8 * 64 * 4);
  std::map<std::string, double> tensors{{"merge", 3}, {"add", 3}, {"loop", 3}, {"memcpy", 2}};
  for (const Side& side : rate.sides()) {
    ASSERT_TRUE(tensors.contains(side.name)) << side.name;
    const double count = work_of(side) / static_cast<double>(rate.tensor_bytes());
    EXPECT_GE(count, 0.999 * tensors[side.name]) << side.name;
    EXPECT_LE(count, 1.25 * tensors[side.name]) << side.name;
    tensors.erase(side.name);
  }
  EXPECT_TRUE(tensors.empty()) << tensors.begin()->first << " is no side";
}

TEST(Layer, CountsTheBuffersOfItsResults) {
  Layer layer(small_problem(), "ring", small_sample(), make_thread_ranks(small_problem().world, 0));
  layer.first_run();
  const std::int64_t forward = layer.allocations(false);
  const std::int64_t both = layer.allocations(true);
  EXPECT_GE(forward, 2) << "out and its log-sum-exp";
  EXPECT_GE(both, forward + 3) << "and three gradients";
  EXPECT_LT(both, 1000);
}

/// Rank 0 of a group. Its time is that of its thread on a core, so other tests beside this one do
/// not count.
class CoreTimeRank : public Ranks {
 public:
  void start(Work work, Repeats repeats) override {
    work_ = std::move(work);
    repeats_ = repeats;
  }
  double wait() override {
    double begin = 0;
    double end = 0;
    comm::run_ranks(1, [&](comm::Communicator& comm) {
      for (int i = 0; i < repeats_.untimed; ++i) work_(comm);
      begin = core_seconds();
      for (int i = 0; i < repeats_.timed; ++i) work_(comm);
      end = core_seconds();
    });
    return (end - begin) / repeats_.timed;
  }
  bool runs(int rank) const override { return rank == 0; }

 private:
  static double core_seconds() {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  Work work_;
  Repeats repeats_;
};

// Backward has two and a half times the flops of forward.
TEST(LayerKernels, BackwardIsTimedWithForward) {
  LayerKernels kernels(small_problem(), "ring", small_sample(), std::make_unique<CoreTimeRank>());
  const std::vector<Side> sides = {{"forward", [&] { return kernels.run(false); }},
                                   {"both", [&] { return kernels.run(true); }}};
  const TurnSummary turns = take_turns(sides, {.seconds = 0, .least = 20});
  EXPECT_GT(turns.leasts.at("both"), 1.5 * turns.leasts.at("forward"));
}

TEST(LayerRate, SidesAreThoseOfItsHeader) {
  LayerCase example{.head_dim = 8, .tokens = 16, .heads = 2, .kv_heads = 1, .world = 2};
  for (const bool kernels : {false, true}) {
    example.kernels = kernels;
    std::vector<std::string> expected = {"cores", "peak"};
    for (const std::string pass : kPassNames) {
      for (const char* name : {"one_rank ", "busy_rank ", "ring "}) expected.push_back(name + pass);
      if (kernels) expected.push_back("ring kernels " + pass);
    }
    std::vector<std::string> names;
    for (const Side& side : LayerRate(example).sides()) names.push_back(side.name);
    EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected)) << "kernels " << kernels;
  }
}

TEST(LayerRate, RecordsThatItsRanksHaveEnded) {
  const recorder::RunFolder folder;
  LayerCase example{.head_dim = 8, .tokens = 16, .heads = 2, .kv_heads = 1, .world = 2};
  example.run_folder = folder.path();
  const auto ends = [&] {
    std::vector<recorder::End> ends;
    for (const auto& flight : recorder::read_run(folder.path()).flights) {
      ends.push_back(flight.value().end);
    }
    return ends;
  };
  {
    const LayerRate rate(example);
    EXPECT_THAT(ends(), testing::ElementsAre(recorder::End::Running, recorder::End::Running));
  }
  EXPECT_THAT(ends(), testing::ElementsAre(recorder::End::Done, recorder::End::Done));
}

// Compute alone has the kernel calls of the layer, messages alone have none. The bounds are wide,
// as other tests run beside this one.
TEST(OverlapRate, PartsOfALayer) {
  OverlapRate rate({.layer = {.head_dim = 64,
                              .tokens = 1024,
                              .heads = 2,
                              .kv_heads = 2,
                              .world = 2,
                              .strategies = {"ring", "tokenring"}},
                    .ranks_per_node = 1});
  const TurnSummary turns = take_turns(rate.sides(), {.seconds = 0, .least = 7});
  for (const std::string strategy : {"ring", "tokenring"}) {
    for (const std::string pass : kPassNames) {
      const double whole = turns.leasts.at(strategy + " " + pass);
      EXPECT_GT(turns.leasts.at(strategy + " compute " + pass), 0.15 * whole) << strategy << pass;
      EXPECT_LT(turns.leasts.at(strategy + " messages " + pass), 0.85 * whole) << strategy << pass;
    }
  }
}

// K and V meet the attends of the first step; dK and dV of a ring of two go home behind the last.
TEST(CollectivesRate, CountsWhatARankSends) {
  CollectivesRate rate({.world = 3, .bytes = {64, 8}});
  ASSERT_EQ(rate.facts().size(), 4);
  for (const CollectiveFacts& facts : rate.facts()) {
    EXPECT_EQ(facts.messages, 2) << "to each other rank, and none in front";
    EXPECT_EQ(facts.bytes, 2 * facts.part_bytes);
    EXPECT_EQ(facts.label_bytes, 2 * 56);
  }
  std::vector<std::string> names;
  for (const Side& side : rate.sides()) {
    names.push_back(side.name);
    EXPECT_GT(side.run(), 0) << side.name;
  }
  ASSERT_EQ(names.size(), 1 + 4 * 4);
  names.resize(6);
  EXPECT_THAT(names, testing::ElementsAre("cores", "all_gather 64", "all_gather 64 bare",
                                          "all_gather 64 compute", "all_gather 64 beside",
                                          "reduce_scatter 64"));
}

TEST(CollectivesRate, ComputesAboutAsLong) {
  CollectivesRate rate({.bytes = {1 << 20}});
  std::map<std::string, double> least;
  for (int turn = 0; turn < 5; ++turn) {
    for (const Side& side : rate.sides()) {
      if (side.name == "cores") continue;
      const double seconds = side.run();
      const auto [entry, added] = least.emplace(side.name, seconds);
      if (!added) entry->second = std::min(entry->second, seconds);
    }
  }
  for (const std::string name : {"all_gather 1048576", "reduce_scatter 1048576"}) {
    EXPECT_GT(least[name + " compute"], least[name] / 5);
    EXPECT_GT(least[name + " beside"], least[name + " compute"] / 2) << "which it holds";
  }
}

/// Threads whose messages lose their first value on the way.
class LossyRanks : public ThreadRanks {
 public:
  using ThreadRanks::ThreadRanks;
  void start(Work work, Repeats repeats) override {
    ThreadRanks::start(
        [work = std::move(work)](comm::Communicator& comm) {
          runtime::WatchedCommunicator lossy(comm, [](const comm::Message& message) {
            if (message.parts.empty() || message.direction == comm::Direction::Receive) return;
            std::memset(message.parts[0].data, 0, sizeof(float));
          });
          work(lossy);
        },
        repeats);
  }
};

TEST(CollectivesRate, ChecksResultsFirst) {
  EXPECT_THAT(
      [&] {
        CollectivesRate({.bytes = {64}},
                        [](int world, int) { return std::make_unique<LossyRanks>(world); });
      },
      testing::ThrowsMessage<Error>("bench: all_gather of 2 ranks: element 16 of rank 0 is 0; "
                                    "0.013 is required"));
}

TEST(OverlapRate, CountsBytesThatNothingHides) {
  const OverlapRate rate(
      {.layer =
           {.head_dim = 8, .tokens = 16, .heads = 1, .kv_heads = 1, .mask = "full", .world = 2},
       .ranks_per_node = 1});
  const OverlapFacts& ring = rate.facts().at(0);
  const std::int64_t kv = 2 * 16 * 8 * 4;
  EXPECT_THAT(ring.sent_bytes[0], testing::ElementsAre(kv, kv));
  EXPECT_THAT(ring.lone_bytes[0], testing::ElementsAre(0, 0));
  EXPECT_THAT(ring.sent_bytes[1], testing::ElementsAre(3 * kv, 3 * kv));
  EXPECT_THAT(ring.lone_bytes[1], testing::ElementsAre(kv, kv));
}

}  // namespace
}  // namespace armillary::bench
