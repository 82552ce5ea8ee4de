// methods_test.cpp: Table 2 of USP (arXiv:2405.07719, section 4) against the costs that
// `armillary advise` uses: the table of methods, the terms of a mesh, and the bytes of plans.
//
// The paper writes parameters in units of d^2 (a layer of GPT has 12 of them), activations in
// units of bs L d, and (n - 1) / n as 1. Three of its conventions differ from ours:
//
//   gradients     the paper counts a reduce-scatter with an all-gather as one time the parameters,
//                 and as two times the activations; here it is two times in both columns
//   all-to-all    the paper counts the whole tensor, here each device sends 1 / n of it
//   bytes of G    the paper has gradients in bf16 (G = P), here they are summed in fp32 (G = 2 P)
#include "armillary/predict/cost/methods.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/known_models.h"

namespace armillary::cost {
namespace {

constexpr int kDevices = 8;
constexpr double kShare = (kDevices - 1.0) / kDevices;

/// GPT with d = 5,120: a layer has 12 d^2 parameters, and as many KV heads as query heads.
Step gpt(std::int64_t batch = 1) {
  return {.model = parse_model("gpt3-13b"), .seq = 1 << 15, .batch = batch};
}

/// bs L d, the elements of one tensor of hidden states.
double hidden_states(const Step& step) {
  return static_cast<double>(step.seq * step.batch * step.model.bytes.input) / 2;
}

MethodCost row_of(const Step& step, int devices, const std::string& method) {
  const std::vector<MethodCost> rows = method_costs(step, devices);
  const auto entry = std::find_if(rows.begin(), rows.end(),
                                  [&](const MethodCost& row) { return row.method == method; });
  EXPECT_NE(entry, rows.end()) << method;
  return entry == rows.end() ? MethodCost{} : *entry;
}

/// A row as the paper prints it, with N = 8. Parts of P, G, OS and A on each device.
struct PaperRow {
  std::string method;
  double parameter_d2;  ///< Parameters sent, in d^2.
  double activations;   ///< Activations sent, in bs L d, all-to-alls as 1 / N.
  double p, g, os;
  std::string not_in_mesh = "";
  Parallelism parallelism = {};  ///< The same method as a mesh.
  std::int64_t batch = 1;
};

constexpr double kPart = 1.0 / kDevices;

std::vector<PaperRow> paper_rows() {
  return {
      {"SP-Ulysses", 12, 8 * kPart, 1, 1, 1, "", {.mesh = {.cp = kDevices}}},
      // The paper calls the ring's messages hidden. K, V pass twice, dK, dV once.
      {"SP-Ring", 12, 6, 1, 1, 1, "", {.mesh = {.cp = kDevices}}},
      {"DP", 12, 0, 1, 1, 1, "", {.mesh = {.dp = kDevices}}, kDevices},
      {"DP + ZeRO-1", 12, 0, 1, 1, kPart, "", {.mesh = {.dp = kDevices}, .zero = 1}, kDevices},
      {"SP-Unified + ZeRO-1",
       12,
       8 * kPart,
       1,
       1,
       kPart,
       "",
       {.mesh = {.cp = kDevices}, .zero = 1}},
      {"SP-Unified + ZeRO-2",
       12,
       8 * kPart,
       1,
       kPart,
       kPart,
       "",
       {.mesh = {.cp = kDevices}, .zero = 2}},
      {"SP-Unified + ZeRO-3",
       18,
       8 * kPart,
       kPart,
       kPart,
       kPart,
       "",
       {.mesh = {.cp = kDevices}, .zero = 3}},
      {"TP", 0, 8, kPart, kPart, kPart, "advise has TP-sp only"},
      {"TP-sp", 0, 8, kPart, kPart, kPart, "", {.mesh = {.tp = kDevices}}},
  };
}

TEST(Table2, HasEveryRowOfThePaper) {
  for (const PaperRow& paper : paper_rows()) {
    SCOPED_TRACE(paper.method);
    const Step step = gpt(paper.batch);
    const MethodCost row = row_of(step, kDevices, paper.method);
    const double d2 = 5120.0 * 5120.0;
    EXPECT_DOUBLE_EQ(row.parameter_elements, 2 * paper.parameter_d2 * d2 * kShare);
    EXPECT_DOUBLE_EQ(row.activation_elements, paper.activations * hidden_states(step) * kShare);
    const double p = 2 * 12 * d2;  // bytes of the parameters in bf16
    EXPECT_DOUBLE_EQ(row.parameter_bytes, p * paper.p + 2 * p * paper.g);
    EXPECT_DOUBLE_EQ(row.optimizer_bytes, 6 * p * paper.os);
  }
}

// Section 4: "the communication cost for Activations is 1.3x, 5.3x, and 10.7x that of the parameter
// communication cost" for d = 4K. Half of that if both columns count an all-reduce alike.
TEST(Table2, ActivationsOutweighParametersAsThePaperSays) {
  Step step{.model = parse_model("layers=32,hidden=4096,heads=32,ffn=16384,vocab=50257,"
                                 "gated=false")};
  for (const auto& [length, ratio] : {std::pair{8, 1.3}, {32, 5.3}, {64, 10.7}}) {
    step.seq = std::int64_t{1024} * length;
    const double activations = row_of(step, kDevices, "TP").activation_elements;
    const double parameters = row_of(step, kDevices, "DP").parameter_elements;
    EXPECT_NEAR(activations / (parameters / 2), ratio, 0.05) << length;
    EXPECT_NEAR(activations / parameters, ratio / 2, 0.025) << length;
  }
}

// "reduced to 4 O(bs L d) + 4 O(bs L d / G)", and K, V of the ring to 1 / G. A device has at least
// one KV head, so an all-to-all gains no more once there are fewer KV heads than devices.
TEST(Table2, GroupedHeadsShrinkKeysAndValues) {
  const auto of = [](int kv_heads, const char* method) {
    Step step = gpt();
    step.model.attention.kv_heads = kv_heads;
    return row_of(step, kDevices, method).activation_elements / kShare / hidden_states(step);
  };
  EXPECT_DOUBLE_EQ(of(8, "SP-Ulysses"), (4 + 4.0 / 5) / kDevices);
  EXPECT_DOUBLE_EQ(of(8, "SP-Ring"), 6.0 / 5);
  EXPECT_DOUBLE_EQ(of(1, "SP-Ulysses"), of(8, "SP-Ulysses"));
  EXPECT_DOUBLE_EQ(of(1, "SP-Ring"), 6.0 / 40);
  EXPECT_DOUBLE_EQ(of(1, "TP"), 8);
  EXPECT_DOUBLE_EQ(of(1, "TP-sp"), 8);
}

// A / N for all but TP, whose alpha is equation 2 of "Reducing activation recomputation" (Megatron,
// arXiv:2205.05198): s b h (10 + 24 / t) bytes, less one byte for each of two dropout masks.
TEST(Table2, ActivationsAreSplitButForThoseOfTp) {
  const Step step = gpt();
  const double sbh = hidden_states(step);
  for (const MethodCost& row : method_costs(step, kDevices)) {
    const double bytes = row.method == "TP" ? 8 + 24.0 / kDevices : 32.0 / kDevices;
    EXPECT_DOUBLE_EQ(row.activation_bytes, sbh * bytes) << row.method;
  }
}

/// A step with twice the layers less the same step: what eight layers add.
template <typename Cost>
double of_a_layer(Step step, const Cost& cost) {
  const auto with = [&](int layers) {
    step.model = step.model.with_layers(layers);
    return cost(step);
  };
  const double few = with(kDevices);
  return (with(2 * kDevices) - few) / kDevices;
}

// The terms that choose a mesh are those of the table. Activations are compared with one sequence
// for each replica: a mesh takes more of them one after the other, the table all at once.
TEST(Table2, MemoryIsThatOfAMesh) {
  std::vector<PaperRow> rows = paper_rows();
  for (const std::int64_t batch : {1, 4, 8}) {  // no more sequences than stages
    rows.push_back(
        {.method = "PP", .parallelism = {.mesh = {.pp = kDevices}, .zero = 0}, .batch = batch});
  }
  for (const PaperRow& paper : rows) {
    if (!paper.not_in_mesh.empty()) continue;
    SCOPED_TRACE(paper.method);
    Step step = gpt(paper.batch);
    const auto term = [&](const auto& bytes) {
      return of_a_layer(step,
                        [&](const Step& s) { return bytes(step_memory(s, paper.parallelism, 0)); });
    };
    const MethodCost row = row_of(step, kDevices, paper.method);
    const auto state = [](const StepMemory& m) { return m.parameters + m.gradients; };
    const auto optimizer = [](const StepMemory& m) { return m.optimizer; };
    const auto activations = [](const StepMemory& m) { return m.activations; };
    EXPECT_NEAR(term(state) / row.parameter_bytes, 1, 1e-9);
    EXPECT_NEAR(term(optimizer) / row.optimizer_bytes, 1, 1e-9);
    EXPECT_NEAR(term(activations) / row.activation_bytes, 1, 1e-9);
  }
}

// Seconds of a mesh times the bandwidth are the bytes of the table: gradients travel in fp32,
// parameters and activations in bf16.
TEST(Table2, CommunicationIsThatOfAMesh) {
  sim::Cluster cluster = sim::load_cluster("c5a");  // one node
  cluster.messages.latency_s = 0;
  for (sim::LinkRule& link : cluster.links) link.latency_s = 0;
  const double rate = group_bytes_per_s(cluster, kDevices, 1);
  for (const PaperRow& paper : paper_rows()) {
    if (!paper.not_in_mesh.empty()) continue;
    SCOPED_TRACE(paper.method);
    Step step = gpt(paper.batch);
    const auto bytes = [&](double StepTime::*term) {
      return rate * of_a_layer(step, [&](const Step& s) {
               return step_time(s, paper.parallelism, cluster, {}).*term;
             });
    };
    const MethodCost row = row_of(step, kDevices, paper.method);
    const bool is_tp = paper.parallelism.mesh.tp > 1;
    const ModelCost layer = step.model.with_layers(1);
    const double summed = is_tp ? 0 : static_cast<double>(layer.layer_parameters) * kShare;
    // Without ZeRO the second round is of gradients as well.
    const int second = paper.parallelism.zero == 0 ? 4 : 2;
    const double expected = 4 * summed + second * (row.parameter_elements - summed);
    EXPECT_NEAR(bytes(&StepTime::gradients), expected, 1e-6 * expected);
    const double tensor = is_tp ? 2 * row.activation_elements : 0;
    EXPECT_NEAR(bytes(&StepTime::tensor_parallel), tensor, 1e-6 * tensor);
  }
}

// The paper's text alone has PP. A stage sends the hidden states of each sequence, and gets their
// gradients; the table has the mean over its layers.
TEST(Table2, PipelinesSendHiddenStates) {
  const Step step = gpt(4);
  const sim::Cluster cluster = sim::load_cluster("c5a");
  const StepTime time = step_time(step, {.mesh = {.pp = kDevices}}, cluster, {0.01});
  const double busy = time.total() - time.gradients - time.optimizer - time.pipeline;
  const double idle = busy * (kDevices - 1) / 4;
  const double sent_bytes = (time.pipeline - idle) * group_bytes_per_s(cluster, kDevices, 1);
  const MethodCost row = row_of(step, kDevices, "PP");
  EXPECT_NEAR(sent_bytes / (2 * row.activation_elements * 40), 1, 1e-6);
  EXPECT_EQ(row.parameter_elements, 0);
}

// The plans that run move what the table says, with a full mask. Sums of dK, dV are fp32.
TEST(Table2, CommunicationOfSequencesIsThatOfPlans) {
  struct Case {
    std::string strategy;
    int heads, kv_heads, world, u;
  };
  for (const Case& c : std::vector<Case>{{"ulysses", 8, 8, 8, 8},
                                         {"ulysses", 8, 4, 4, 4},
                                         {"ring", 8, 8, 8, 1},
                                         {"ring", 8, 2, 5, 1},
                                         {"usp:u=4", 8, 4, 8, 4},
                                         {"usp:u=2", 8, 8, 8, 2}}) {
    SCOPED_TRACE(c.strategy);
    const std::int64_t seq = std::int64_t{64} * c.world;
    const plan::Problem problem{.world = c.world,
                                .heads = c.heads,
                                .kv_heads = c.kv_heads,
                                .head_dim = 16,
                                .value_dim = 16,
                                .dtype = plan::Dtype::Bf16,
                                .mask = plan::full_mask({seq, seq})};
    const plan::Planner planner(problem, plan::parse_strategy(c.strategy));
    double sent_bytes = 0;
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      sent_bytes += static_cast<double>(
          traffic(problem, planner.blocks(), planner.program(pass, 0)).sent_bytes);
    }
    const ModelCost model = cost_of({.layers = 1,
                                     .hidden = 16 * c.heads,
                                     .heads = c.heads,
                                     .kv_heads = c.kv_heads,
                                     .head_dim = 16});
    const SequenceElements counted = sequence_elements({.model = model, .seq = seq}, c.world, c.u);
    const double sums = counted.ring / 3;  // two of six tensors
    EXPECT_DOUBLE_EQ(sent_bytes, 2 * (counted.heads + counted.ring - sums) + 4 * sums);
  }
}

// "<= 8 O(bs L d)" with rings hidden: the ways over heads of SP-Unified send no more than those of
// SP-Ulysses on as many devices, whatever their number.
TEST(Table2, UnifiedSendsNoMoreBetweenHeadsThanUlysses) {
  const Step step = gpt();
  const double most = 8 * hidden_states(step) / kDevices * kShare;
  for (const int u : {1, 2, 4, 8}) {
    const SequenceElements unified = sequence_elements(step, kDevices, u);
    EXPECT_LE(unified.heads, most) << u;
    EXPECT_LE(unified.total(), sequence_elements(step, kDevices, 1).total()) << u;
  }
}

TEST(Table2, LeavesOutMethodsThatCannotBe) {
  const auto has = [](int devices, const std::string& method) {
    const std::vector<MethodCost> rows = method_costs(gpt(), devices);  // 40 heads, 40 layers
    return std::any_of(rows.begin(), rows.end(),
                       [&](const MethodCost& row) { return row.method == method; });
  };
  for (const char* method : {"SP-Ulysses", "TP", "TP-sp", "PP"}) {
    EXPECT_TRUE(has(40, method)) << method;
    EXPECT_FALSE(has(16, method)) << method;
  }
  EXPECT_TRUE(has(16, "SP-Unified + ZeRO-3"));
  const SequenceElements unified = sequence_elements(gpt(), 16, 8);  // rings of two
  EXPECT_DOUBLE_EQ(row_of(gpt(), 16, "SP-Unified + ZeRO-3").activation_elements, unified.total());
}

}  // namespace
}  // namespace armillary::cost
