// tips_test.cpp: the seven tips of USP (arXiv:2405.07719, sections 3 and 4), each derived from the
// costs that `armillary advise` uses, on described clusters. A tip that holds on a condition has a
// case on each side of it. The clusters:
//
//   c5    2 nodes of 8 A800, NVLink and one NIC a device     c6   8 A100, NVLink
//   c5a   one node of c5                                     c7   8 L20, PCIe with two sockets
//   c1    8 nodes of 8 H100, NVLink and one NIC a device     c3   4 nodes of 8 A100, Ethernet
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "armillary/predict/cost/known_models.h"
#include "armillary/predict/cost/methods.h"
#include "armillary/predict/tune/evaluator.h"
#include "armillary/predict/tune/testing/questions.h"

namespace armillary::tune {
namespace {

using testing::advice_question;
using testing::question;

/// Attention of one layer on ranks of a cluster, 32 query heads, causal, layout zigzag.
struct RankedLayer {
  std::string cluster;
  int world = 8;
  int kv_heads = 8;
  std::int64_t seq = 0;
  bool forward_only = false;

  double seconds(const std::string& strategy) const {
    Question query = question(cluster, world, "causal", seq);
    query.problem.heads = 32;
    query.problem.kv_heads = kv_heads;
    if (forward_only) query.passes = {plan::Pass::Forward};
    Evaluator evaluator(query);
    Evaluation evaluation = evaluator
                                .estimate({{.strategy = plan::parse_strategy(strategy),
                                            .layout = plan::parse_layout("zigzag")}})
                                .front();
    evaluator.simulate(evaluation);
    return evaluation.times.total_s;
  }
  /// The fastest USP with 1 < u < world.
  double mixed() const {
    double least = seconds("usp:u=2");
    for (int u = 4; u < world; u *= 2) {
      least = std::min(least, seconds("usp:u=" + std::to_string(u)));
    }
    return least;
  }
};

/// Null if the mesh does not fit or cannot be.
const Advised* find(const Advice& advice, const cost::Parallelism& mesh) {
  const auto entry = std::find_if(advice.meshes.begin(), advice.meshes.end(),
                                  [&](const Advised& one) { return one.parallelism == mesh; });
  return entry == advice.meshes.end() ? nullptr : &*entry;
}

cost::MethodCost cost_of(const cost::Step& step, int devices, const std::string& method) {
  const std::vector<cost::MethodCost> rows = cost::method_costs(step, devices);
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const cost::MethodCost& row) { return row.method == method; });
}

// Tip 1: unified SP in place of SP-Ring and SP-Ulysses.

TEST(Tip1, UnifiedIsRingAndUlyssesAtItsEnds) {
  for (const RankedLayer& layer :
       {RankedLayer{.cluster = "c6", .seq = 32768}, {.cluster = "c7", .seq = 8192}}) {
    EXPECT_DOUBLE_EQ(layer.seconds("usp:u=1"), layer.seconds("ring"));
    EXPECT_DOUBLE_EQ(layer.seconds("usp:u=8"), layer.seconds("ulysses"));
  }
}

// Links that differ: PCIe within and between sockets, or nodes on a network, with grouped heads.
TEST(Tip1, UnifiedIsFasterThanBothWhereLinksDiffer) {
  for (const RankedLayer& layer : {RankedLayer{.cluster = "c7", .seq = 8192, .forward_only = true},
                                   {.cluster = "c5", .world = 16, .seq = 16384},
                                   {.cluster = "c5", .world = 16, .seq = 65536},
                                   {.cluster = "c3:nodes=2", .world = 16, .seq = 65536}}) {
    const double mixed = layer.mixed();
    EXPECT_LT(mixed, 0.99 * layer.seconds("ring")) << layer.cluster;
    EXPECT_LT(mixed, 0.99 * layer.seconds("ulysses")) << layer.cluster;
  }
}

// One of its ends is the best: Ulysses where links are alike or K, V have as many heads as Q, Ring
// where compute hides it on slow links.
TEST(Tip1, OneOfBothIsBestOtherwise) {
  for (const RankedLayer& layer : {RankedLayer{.cluster = "c6", .seq = 32768},
                                   {.cluster = "c5", .world = 16, .kv_heads = 32, .seq = 65536}}) {
    EXPECT_LT(layer.seconds("ulysses"), layer.mixed()) << layer.cluster;
  }
  const RankedLayer slow{.cluster = "c7", .seq = 131072, .forward_only = true};
  EXPECT_LT(slow.seconds("ring"), slow.mixed());
}

// Tip 2: DP before SP while the batch can be divided.

TEST(Tip2, ReplicasAreFasterWhileTheyFit) {
  for (const std::int64_t seq : {2048, 4096, 8192}) {
    const Advice advice = advise(advice_question("llama2-7b", "c5a", seq, 8));
    const Advised* dp = find(advice, {.mesh = {.dp = 8}, .zero = 1});
    const Advised* sp = find(advice, {.mesh = {.cp = 8}, .zero = 1});
    ASSERT_NE(dp, nullptr) << seq;
    ASSERT_NE(sp, nullptr) << seq;
    EXPECT_LT(dp->time.total(), sp->time.total()) << seq;
    // Attention is all that differs.
    EXPECT_LT(dp->time.attention, sp->time.attention) << seq;
    const auto rest = [](const cost::StepTime& time) {
      return time.total() + time.hidden - time.attention;
    };
    EXPECT_NEAR(rest(dp->time), rest(sp->time), 1e-9);
    // The best of all meshes has replicas, too.
    EXPECT_GT(advice.meshes.front().parallelism.mesh.dp, 1) << seq;
  }
}

// The paper counts the same memory, all sequences at once. A mesh takes one after the other, so a
// device of SP holds a part of one sequence, and one of DP a whole one.
TEST(Tip2, ReplicasHoldWholeSequences) {
  const cost::Step step{.model = cost::parse_model("llama2-7b"), .seq = 8192, .batch = 8};
  EXPECT_EQ(cost_of(step, 8, "DP").activation_bytes, cost_of(step, 8, "SP-Ring").activation_bytes);
  EXPECT_DOUBLE_EQ(cost::step_memory(step, {.mesh = {.dp = 8}}, 0).activations,
                   8 * cost::step_memory(step, {.mesh = {.cp = 8}}, 0).activations);
  const Advice advice = advise(advice_question("llama2-7b", "c5a", 16384, 8));
  EXPECT_EQ(find(advice, {.mesh = {.dp = 8}, .zero = 2}), nullptr);
  EXPECT_NE(find(advice, {.mesh = {.cp = 8}, .zero = 2}), nullptr);
}

TEST(Tip2, SequencesAreDividedWhenTheBatchCannotBe) {
  const Advice advice = advise(advice_question("llama2-7b", "c5a", 8192, 4));
  EXPECT_EQ(find(advice, {.mesh = {.dp = 8}, .zero = 2}), nullptr);
  EXPECT_NE(find(advice, {.mesh = {.dp = 4, .cp = 2}, .zero = 2}), nullptr);
}

// Tip 3: SP always with ZeRO-1 or 2; ZeRO-3 trades communication for memory.

TEST(Tip3, ZeroCostsNothingUpToStageTwo) {
  const cost::Step step{.model = cost::parse_model("llama2-7b"), .seq = 32768, .batch = 2};
  const sim::Cluster cluster = sim::load_cluster("c5");
  for (const cost::Parallelism& mesh : {cost::Parallelism{.mesh = {.cp = 2}},
                                        {.mesh = {.cp = 8}},
                                        {.mesh = {.dp = 2, .cp = 8}},
                                        {.mesh = {.cp = 8, .tp = 2}}}) {
    std::array<cost::StepTime, 4> times;
    std::array<double, 4> bytes{};
    for (int zero = 0; zero <= 3; ++zero) {
      cost::Parallelism staged = mesh;
      staged.zero = zero;
      staged.microbatch = 0;  // The paper accumulates nothing.
      times[zero] = cost::step_time(step, staged, cluster, {0.01});
      bytes[zero] = cost::step_memory(step, staged, 0).total();
      if (zero > 0) {
        EXPECT_LT(bytes[zero], bytes[zero - 1]) << mesh.mesh.cp << " " << zero;
      }
    }
    for (const int zero : {1, 2}) {
      // A sum of 4 bytes and a gather of 2, where stage 0 has a sum in two rounds; and latency.
      EXPECT_NEAR(times[zero].gradients / times[0].gradients, 6.0 / 8, 0.01);
      EXPECT_LT(times[zero].total(), times[0].total());  // a part of the optimizer
    }
    // Three collectives for two, of 4 + 2 + 2 bytes for 4 + 2; but the head and the last layer are
    // gathered once.
    const cost::ModelCost& model = step.model;
    const std::int64_t layer = model.layer_parameters / model.attention.layers;
    const double once =
        static_cast<double>(model.matmul_parameters - model.layer_matmul_parameters + layer) /
        static_cast<double>(model.parameters);
    EXPECT_NEAR(times[3].gradients / times[1].gradients, (8 - 2 * once) / 6, 0.01);
  }
}

// Tip 4: fewer KV heads make SP cheaper than TP.

cost::Step grouped(int kv_heads, std::int64_t seq) {
  return {
      .model = cost::parse_model("layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,kv_heads=" +
                                 std::to_string(kv_heads)),
      .seq = seq};
}

/// Elements that one of 8 devices sends for a layer.
double sent_bytes(const std::string& method, int kv_heads, std::int64_t seq) {
  const cost::MethodCost cost = cost_of(grouped(kv_heads, seq), 8, method);
  return cost.parameter_elements + cost.activation_elements;
}

TEST(Tip4, FewKvHeadsTurnRingIntoTheCheaperOne) {
  EXPECT_GT(sent_bytes("SP-Ring", 32, 32768), sent_bytes("TP-sp", 32, 32768));
  EXPECT_LT(sent_bytes("SP-Ring", 8, 32768), sent_bytes("TP-sp", 8, 32768));
  EXPECT_LT(sent_bytes("SP-Ring", 1, 32768), sent_bytes("TP-sp", 1, 32768));
  const sim::Cluster cluster = sim::load_cluster("c5a");
  const auto tp = [&](int kv_heads) {
    return cost::step_time(grouped(kv_heads, 32768), {.mesh = {.tp = 8}}, cluster, {})
        .tensor_parallel;
  };
  EXPECT_DOUBLE_EQ(tp(8), tp(32));  // TP gains nothing
}

// Parameters decide at short lengths: TP sends none. At long ones all-to-alls send less than TP
// with any heads, for each device has a part of them only. They stop gaining at one KV head each.
TEST(Tip4, LengthDecidesForUlysses) {
  for (const int kv_heads : {32, 8, 1}) {
    EXPECT_GT(sent_bytes("SP-Ulysses", kv_heads, 8192), sent_bytes("TP-sp", kv_heads, 8192))
        << kv_heads;
    EXPECT_LT(sent_bytes("SP-Ulysses", kv_heads, 32768), sent_bytes("TP-sp", kv_heads, 32768))
        << kv_heads;
  }
  EXPECT_LT(cost::sequence_elements(grouped(8, 8192), 8, 8).heads,
            cost::sequence_elements(grouped(32, 8192), 8, 8).heads);
  EXPECT_EQ(cost::sequence_elements(grouped(1, 8192), 8, 8).heads,
            cost::sequence_elements(grouped(8, 8192), 8, 8).heads);
}

// Tip 5: SP in place of TP-sp cannot make sequences longer; with ZeRO-3 they are about as long.

TEST(Tip5, TpFitsTheLongestSequence) {
  for (const char* model : {"llama2-7b", "llama3-8b"}) {
    for (const auto recompute : {cost::Recompute::None, cost::Recompute::Full}) {
      const Advice advice = advise(advice_question(model, "c5a", 8192, 1));
      const auto longest = [&](cost::Parallelism mesh) {
        mesh.recompute = recompute;
        const Advised* result = find(advice, mesh);
        return result == nullptr ? 0.0 : static_cast<double>(result->longest_seq);
      };
      const double tp = longest({.mesh = {.tp = 8}});
      EXPECT_LT(longest({.mesh = {.cp = 8}, .zero = 1}), 0.6 * tp) << model;
      EXPECT_LT(longest({.mesh = {.cp = 8}, .zero = 2}), 0.9 * tp) << model;
      EXPECT_LT(longest({.mesh = {.cp = 8}, .zero = 3}), tp) << model;
      EXPECT_GT(longest({.mesh = {.cp = 8}, .zero = 3}), 0.9 * tp) << model;
    }
  }
}

// Table 5 of the paper: 64K tokens of Llama 2 7B on 8 A800, TP 8 runs and SP alone (ZeRO-1) is out
// of memory.
TEST(Tip5, AgreesWithTheMeasuredLimit) {
  const Advice advice = advise(advice_question("llama2-7b", "c5a", 65536, 1));
  EXPECT_NE(find(advice, {.mesh = {.tp = 8}}), nullptr);
  EXPECT_EQ(find(advice, {.mesh = {.cp = 8}, .zero = 1}), nullptr);
}

// Tip 6: more devices for one sequence need rings once heads run out.

TEST(Tip6, RingsGoOnWhereHeadsEnd) {
  double last = 0;
  for (const int nodes : {1, 2, 8}) {
    const int devices = 8 * nodes;
    const Advice advice =
        advise(advice_question("llama3-8b", "c1:nodes=" + std::to_string(nodes), 65536, 1));
    for (const Advised& one : advice.meshes) {
      const Cut cut = cut_of(one.attention.strategy, one.parallelism.mesh.cp);
      EXPECT_LE(one.parallelism.mesh.tp * cut.u, 32) << devices;  // heads
      EXPECT_LE(one.parallelism.mesh.tp, 8) << devices;           // KV heads, and devices of a node
    }
    const Advised* sp = find(advice, {.mesh = {.cp = devices}, .zero = 3});
    ASSERT_NE(sp, nullptr) << devices;
    const Cut cut = cut_of(sp->attention.strategy, devices);
    EXPECT_EQ(cut.u * cut.rq * cut.rk, devices);
    if (devices == 64) {
      EXPECT_GT(cut.rq * cut.rk, 1);
    }
    EXPECT_GT(static_cast<double>(sp->longest_seq), 1.9 * last) << devices;
    last = static_cast<double>(sp->longest_seq);
  }
}

// Tip 7: from neighbouring devices outwards TP, SP-Ulysses, SP-Ring, ZeRO-DP, PP.

/// Two devices along each of five axes: 4 nodes of 8. Bytes that a device sends along each.
class FiveAxes {
 public:
  enum MeshDegree { Tp, Ulysses, Ring, Dp, Pp };

  FiveAxes(const std::string& model, std::int64_t seq) : cluster_(sim::load_cluster("c1:nodes=4")) {
    const cost::Step step{.model = cost::parse_model(model), .seq = seq, .batch = 4};
    // On devices that are all alike seconds are bytes.
    sim::Cluster flat = cluster_;
    flat.nodes = 1;
    flat.devices_per_node = 32;
    flat.messages.latency_s = 0;
    for (sim::LinkRule& link : flat.links) link.latency_s = 0;
    const double rate = cost::group_bytes_per_s(flat, 2, 1);
    const cost::StepTime time =
        cost::step_time(step, {.mesh = {.pp = 2, .dp = 2, .cp = 4, .tp = 2}, .zero = 1}, flat, {});
    const double busy =
        time.total() + time.hidden - time.gradients - time.optimizer - time.pipeline;
    bytes_[Tp] = rate * time.tensor_parallel;
    bytes_[Pp] = rate * (time.pipeline - busy / 2);  // two sequences a replica
    gradients_ = rate * time.gradients * 8 / 7;
    cost::Step half = step;
    half.model.attention.heads /= 2;
    half.model.attention.kv_heads /= 2;
    half.batch = 2;
    const cost::SequenceElements elements = cost::sequence_elements(half, 4, 2);
    const double layers = static_cast<double>(step.model.attention.layers) / 2;
    bytes_[Ulysses] = layers * 2 * elements.heads;
    bytes_[Ring] = layers * 8 / 3 * elements.ring;  // a third of it in fp32
  }

  /// Seconds of all messages, axes from neighbours outwards. Sums of gradients go over the axes
  /// that share parameters, and each leaves half to the next.
  double seconds(const std::array<int, 5>& order) const {
    double total = 0;
    double left = gradients_;
    for (int place = 0; place < 5; ++place) {
      const int axis = order[place];
      double bytes = bytes_[axis];
      if (axis == Ulysses || axis == Ring || axis == Dp) bytes += left /= 2;
      total += bytes / cost::group_bytes_per_s(cluster_, 2, 1 << place);
    }
    return total;
  }

  /// The least seconds of all orders.
  double least() const {
    std::array<int, 5> order{};
    std::iota(order.begin(), order.end(), 0);
    double least = seconds(order);
    while (std::next_permutation(order.begin(), order.end()))
      least = std::min(least, seconds(order));
    return least;
  }

 private:
  sim::Cluster cluster_;
  std::array<double, 5> bytes_{};
  double gradients_ = 0;
};

constexpr std::array<int, 5> kTip7{FiveAxes::Tp, FiveAxes::Ulysses, FiveAxes::Ring, FiveAxes::Dp,
                                   FiveAxes::Pp};

TEST(Tip7, NoOrderIsFasterForLongSequences) {
  for (const char* model : {"llama2-7b", "llama3-8b"}) {
    for (const std::int64_t seq : {65536, 262144}) {
      const FiveAxes axes(model, seq);
      EXPECT_NEAR(axes.seconds(kTip7), axes.least(), 1e-9 * axes.least()) << model << " " << seq;
      std::array<int, 5> reversed = kTip7;
      std::reverse(reversed.begin(), reversed.end());
      EXPECT_GT(axes.seconds(reversed), 2 * axes.least()) << model << " " << seq;
    }
  }
}

// Gradients outweigh activations of short sequences: ZeRO-DP belongs inside then.
TEST(Tip7, ShortSequencesWantReplicasInside) {
  const FiveAxes axes("llama2-7b", 2048);
  EXPECT_GT(axes.seconds(kTip7), 1.05 * axes.least());
}

// All-to-alls inside the nodes, rings between them: with grouped heads, whose K, V are small. With
// as many KV heads as query heads the other order is faster: half of an all-to-all stays inside.
TEST(Tip7, UlyssesInsideRingWithGroupedHeads) {
  for (const std::int64_t seq : {16384, 65536, 131072}) {
    const RankedLayer few{.cluster = "c5", .world = 16, .kv_heads = 8, .seq = seq};
    EXPECT_LT(few.seconds("usp:u=8"), few.seconds("usp:u=8,inner=ring")) << seq;
    const RankedLayer many{.cluster = "c5", .world = 16, .kv_heads = 32, .seq = seq};
    EXPECT_GT(many.seconds("usp:u=8"), many.seconds("usp:u=8,inner=ring")) << seq;
  }
}

}  // namespace
}  // namespace armillary::tune
