// step_test.cpp: terms of training steps, prefills and denoising steps against closed forms, memory
// by stage of ZeRO, and bandwidths of collectives.
#include "armillary/predict/cost/step.h"

#include <gtest/gtest.h>

#include "armillary/core/error.h"
#include "armillary/predict/cost/known_models.h"

namespace armillary::cost {
namespace {

const ModelShape kLlama = parse_shape("llama3-8b");
const ModelShape kLlama2 = parse_shape("llama2-7b");

TEST(ModelCost, CountsTheParametersOfLlama3) {
  const ModelCost cost = cost_of(kLlama);
  EXPECT_EQ(cost.layer_parameters, 32 * 218103808LL);  // as published, without norms
  EXPECT_EQ(cost.parameters, 8029995008);
  ModelShape gpt = kLlama;
  gpt.gated = false;
  EXPECT_EQ(cost.layer_parameters - cost_of(gpt).layer_parameters, 32LL * 4096 * 14336);
}

TEST(ModelCost, LayersAreAllThatChangesWithTheirNumber) {
  const ModelCost cost = cost_of(kLlama);
  const ModelCost none = cost.with_layers(0);
  EXPECT_EQ(none.parameters, 2LL * 128256 * 4096);
  EXPECT_EQ(none.matmul_parameters, 128256LL * 4096);
  ModelShape shape = kLlama;
  shape.layers = 5;
  EXPECT_EQ(cost.with_layers(5).flops(7, 9), cost_of(shape).flops(7, 9));
  EXPECT_EQ(cost.with_layers(5).parameters, cost_of(shape).parameters);
  EXPECT_EQ(dit_cost_of(kLlama, 10).with_layers(5).sequence_flops,
            dit_cost_of(shape, 10).sequence_flops);
}

TEST(StepTime, NeedsTheRateOfMatrixProducts) {
  try {
    sim::Cluster cluster = sim::load_cluster("c8");
    cluster.device.matmul_flops_per_s = 0;
    step_time({.model = cost_of(kLlama), .seq = 4096}, {}, cluster, {0.01});
    FAIL() << "without a rate";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "step: device A10 of cluster c8 has no matmul_TFLOPs; the rate of matrix products "
                 "is required");
  }
}

TEST(StepTime, EveryPresetHasTheRateOfMatrixProducts) {
  for (const std::string& name : sim::preset_names()) {
    const sim::DeviceSpec device = sim::load_cluster(name).device;
    EXPECT_GT(device.matmul_flops_per_s, 0) << name;
    EXPECT_LT(device.matmul_flops_per_s, device.peak_flops_per_s) << name;
  }
}

TEST(StepTime, ProductsAreSharedByAllDevices) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const Step step{.model = cost_of(kLlama), .seq = 65536};
  const StepTime wide = step_time(step, {.mesh = {.cp = 16}, .zero = 1}, cluster, {0.01});
  EXPECT_DOUBLE_EQ(wide.products, 6 * (32 * 218103808.0 + 128256.0 * 4096) * 4096 /
                                      cluster.device.matmul_flops_per_s);
  EXPECT_DOUBLE_EQ(wide.attention, 0.32);
  EXPECT_EQ(wide.tensor_parallel, 0);
  const StepTime deep = step_time(step, {.mesh = {.cp = 2, .tp = 8}, .zero = 1}, cluster, {0.01});
  EXPECT_DOUBLE_EQ(deep.products, wide.products);
  EXPECT_GT(deep.tensor_parallel, 0);
  EXPECT_LT(deep.gradients, wide.gradients);  // an eighth of the parameters each
  EXPECT_THROW(step_time(step, {.mesh = {.cp = 4, .tp = 8}}, cluster, {0.01}), InvalidArgument);
}

TEST(StepTime, PrefillIsTheForwardPartOfTrainingWithoutTheLoss) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  Step step{.model = cost_of(kLlama), .seq = 65536};
  Parallelism parts{.mesh = {.cp = 8, .tp = 2}, .zero = 1};
  ModelShape without_logits = kLlama;
  without_logits.vocab = 0;
  step.model = cost_of(without_logits);
  const StepTime train = step_time(step, parts, cluster, {0.01});
  step.kind = StepKind::Prefill;
  const StepTime prefill = step_time(step, parts, cluster, {0.01});
  EXPECT_DOUBLE_EQ(prefill.products, train.products / 3);
  EXPECT_DOUBLE_EQ(prefill.passes, train.passes / 3);
  EXPECT_DOUBLE_EQ(prefill.tensor_parallel, train.tensor_parallel / 2);
  EXPECT_EQ(prefill.attention, train.attention) << "of the passes that the caller gives";
  EXPECT_EQ(prefill.gradients, 0);
  EXPECT_EQ(prefill.optimizer, 0);
  // Logits of one token of a sequence, on the rank that has it.
  step.model = cost_of(kLlama);
  EXPECT_NEAR(step_time(step, parts, cluster, {0.01}).products - prefill.products,
              2 * 128256.0 * 4096 / 2 / cluster.device.matmul_flops_per_s, 1e-9);
  parts.zero = 3;
  EXPECT_GT(step_time(step, parts, cluster, {0.01}).gradients, 0) << "parameters are gathered";
}

// Eight ranks along tp with two KV heads: four have each, with K, V and the matrices that make
// them.
TEST(StepTime, RanksThatShareAKvHeadHaveItsMatricesEach) {
  ModelShape shape = kLlama;
  shape.kv_heads = 2;
  const ModelCost cost = cost_of(shape);
  EXPECT_EQ(kv_copies(cost.attention, 2), 1);
  EXPECT_EQ(kv_copies(cost.attention, 8), 4);
  const double kv_width = 2 * 128;
  const double more = 3 * 32 * 2 * 4096 * kv_width;
  const Step step{.model = cost, .seq = 65536};
  const Parallelism parts{.mesh = {.cp = 2, .tp = 8}, .zero = 1};
  const sim::Cluster cluster = sim::load_cluster("c5");
  const StepTime time = step_time(step, parts, cluster, {0.01});
  const double flops = 6 * (static_cast<double>(cost.matmul_parameters) + more) * 65536 / 2 / 8;
  EXPECT_NEAR(time.products * cluster.device.matmul_flops_per_s / flops, 1, 1e-12);
  const StepMemory memory = step_memory(step, parts);
  EXPECT_DOUBLE_EQ(memory.parameters, 2 * (static_cast<double>(cost.parameters) + more) / 8);
  // A model with as many heads as ranks has the same work, and no gradients to sum along tp.
  Step own = step;
  own.model = cost.along_tp(8);
  own.model.attention.kv_heads = 8;
  EXPECT_DOUBLE_EQ(step_time(own, parts, cluster, {0.01}).products, time.products);
  EXPECT_LT(step_time(own, parts, cluster, {0.01}).gradients, time.gradients);
  EXPECT_DOUBLE_EQ(step_memory(own, parts).activations, memory.activations);
  Step few = step;
  few.model.attention.kv_heads = 8;  // The shares of ranks without a copy.
  EXPECT_NEAR(memory.activations - step_memory(few, parts).activations,
              32 * 3 * 2 * 2 * kv_width * 65536 / 2 / 8, 1);
}

TEST(StepTime, ADenoisingStepHasItsConditioning) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const ModelShape dit{.layers = 28,
                       .hidden = 1152,
                       .heads = 16,
                       .kv_heads = 16,
                       .head_dim = 72,
                       .ffn = 4608,
                       .vocab = 1,
                       .gated = false};
  Step step{.model = dit_cost_of(dit, 0), .seq = 65536, .kind = StepKind::Dit};
  const Parallelism parts{.mesh = {.cp = 8}, .zero = 1};
  const double rate = cluster.device.matmul_flops_per_s;
  const double h = 1152;
  const double tokens = 8192;
  const double plain = step_time(step, parts, cluster, {0.01}).products;
  EXPECT_DOUBLE_EQ(plain, 28 * (2 * 12 * h * h * tokens + 12 * h * h) / rate);
  step.model = dit_cost_of(dit, 120);
  const double text = step_time(step, parts, cluster, {0.01}).products - plain;
  EXPECT_NEAR(text, 28 * (4 * h * h * tokens + 4 * h * h * 120 + 4 * h * tokens * 120) / rate,
              1e-12);
  // Ranks along tp gather and scatter the tokens of a third branch.
  const auto messages = [&](int words) {
    step.model = dit_cost_of(dit, words);
    return step_time(step, {.mesh = {.cp = 4, .tp = 2}}, cluster, {0.01}).tensor_parallel;
  };
  EXPECT_GT(messages(0), 0);
  EXPECT_DOUBLE_EQ(messages(120), 1.5 * messages(0));
  // DiT-XL/2 has 675 million parameters, of which 18 of each h x h are in layers.
  step.model = dit_cost_of(dit, 0);
  EXPECT_DOUBLE_EQ(step_memory(step, parts).parameters, 2 * 28 * 18 * h * h);
  EXPECT_EQ(step_memory(step, parts).transient, 0);
}

TEST(StepMemory, PrefillKeepsKAndVOfAllLayers) {
  Step step{.model = cost_of(kLlama), .seq = 65536, .kind = StepKind::Prefill};
  const Parallelism parts{.mesh = {.cp = 8}};
  const StepMemory memory = step_memory(step, parts);
  EXPECT_EQ(memory.gradients, 0);
  EXPECT_EQ(memory.optimizer, 0);
  const double kv = 2.0 * 2 * 8 * 128 * 8192;  // K and V of a layer, bf16
  step.model = step.model.with_layers(1);
  EXPECT_DOUBLE_EQ(memory.activations - step_memory(step, parts).activations, 31 * kv);
  step.model = cost_of(kLlama);
  step.kind = StepKind::Dit;
  EXPECT_DOUBLE_EQ(memory.activations - step_memory(step, parts).activations, 31 * kv)
      << "keeps none";
}

TEST(StepMemory, ZeroStagesShareMore) {
  const Step step{.model = cost_of(kLlama), .seq = 65536};
  Parallelism parts{.mesh = {.cp = 16}};
  const StepMemory whole = step_memory(step, parts);
  EXPECT_DOUBLE_EQ(whole.optimizer, 12.0 * 8029995008);
  parts.zero = 1;
  EXPECT_DOUBLE_EQ(step_memory(step, parts).optimizer, whole.optimizer / 16);
  EXPECT_EQ(step_memory(step, parts).gradients, whole.gradients);
  parts.zero = 3;
  EXPECT_DOUBLE_EQ(step_memory(step, parts).parameters, whole.parameters / 16);
  parts.recompute = Recompute::Full;
  EXPECT_LT(step_memory(step, parts).activations, whole.activations / 10);
}

/// Half of the layers are experts: those are divided along ep, all else along tp.
ModelCost with_experts() {
  ModelCost model = cost_of(kLlama);
  model.expert_parameters = model.layer_parameters / 2;
  model.expert_rows = 2;
  return model;
}

TEST(StepMemory, ExpertsAreDividedAlongEp) {
  const ModelCost model = with_experts();
  const auto experts = static_cast<double>(model.expert_parameters);
  const double others = static_cast<double>(model.parameters) - experts;
  for (const int ep : {1, 2, 4, 8}) {
    for (const int zero : {0, 1, 2, 3}) {
      const StepMemory memory =
          step_memory({.model = model, .seq = 4096, .batch = 4},
                      {.mesh = {.dp = 2, .cp = 2, .tp = 2}, .zero = zero, .ep = ep});
      const double whole = others / 2 + experts / ep;
      const double share = others / 8 + experts / 8;
      EXPECT_DOUBLE_EQ(memory.parameters, 2 * (zero == 3 ? share : whole)) << ep << " " << zero;
      EXPECT_DOUBLE_EQ(memory.gradients, 4 * (zero >= 2 ? share : whole)) << ep << " " << zero;
      EXPECT_DOUBLE_EQ(memory.optimizer, 12 * (zero >= 1 ? share : whole)) << ep << " " << zero;
    }
  }
}

TEST(StepTime, RowsGoToExpertsAndBack) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const Step step{.model = with_experts(), .seq = 4096};
  const auto seconds = [&](int ep, Recompute recompute) {
    return step_time(step, {.mesh = {.cp = 4}, .recompute = recompute, .ep = ep}, cluster, {0.01})
        .experts;
  };
  EXPECT_EQ(seconds(1, Recompute::None), 0);
  EXPECT_GT(seconds(4, Recompute::None), seconds(2, Recompute::None));
  EXPECT_DOUBLE_EQ(seconds(4, Recompute::Full), 1.5 * seconds(4, Recompute::None));
  // A unit for the experts of each layer.
  EXPECT_EQ(unit_times(step, {.mesh = {.cp = 4}, .ep = 4}, cluster, {0.01}).size(), 2 + 2 * 32U);
}

// Two stages without replicas: half of the layers each, and one idle stage for one sequence.
TEST(StepTime, StagesWaitForEachOther) {
  const Step step{.model = cost_of(kLlama2), .seq = 1 << 14, .batch = 4};
  const sim::Cluster cluster = sim::load_cluster("c6");
  const StepTime one = step_time(step, {.mesh = {.tp = 4}}, cluster, {0.01});
  const StepTime two = step_time(step, {.mesh = {.pp = 2, .tp = 4}}, cluster, {0.01});
  EXPECT_DOUBLE_EQ(one.pipeline, 0);
  EXPECT_DOUBLE_EQ(two.attention, one.attention / 2);
  EXPECT_GT(two.pipeline, (two.products + two.attention) / 4);
  // Two sequences are under way on the first stage, so it holds what one stage alone would.
  EXPECT_DOUBLE_EQ(step_memory(step, {.mesh = {.pp = 2, .tp = 4}}, 0).activations,
                   step_memory(step, {.mesh = {.tp = 4}}, 0).activations);
  EXPECT_LT(step_memory(step, {.mesh = {.tp = 4}, .recompute = Recompute::Full}, 0).activations,
            step_memory(step, {.mesh = {.tp = 4}}, 0).activations);
}

TEST(StepMemory, PrefillKeepsKAndVOfSequencesThatHaveLeft) {
  Step step{.model = cost_of(kLlama), .seq = 8192, .kind = StepKind::Prefill};
  const Parallelism parts{.mesh = {.cp = 4}};
  const double one = step_memory(step, parts).activations;
  step.batch = 3;
  const double three = step_memory(step, parts).activations;
  EXPECT_DOUBLE_EQ(three - one, 2 * 2.0 * 2 * 32 * 8 * 128 * 2048) << "not what layers share";
}

TEST(GroupBandwidth, IsThatOfTheNarrowestPart) {
  const sim::Cluster cluster =
      sim::load_cluster("c5");  // 158 GB/s in a node, 24 for each device outside
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 8, 1), 158e9);
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 16, 1), 158e9);     // eight network links
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 8, 2), 4 * 24e9);   // four of them a group
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 8, 2, 1), 24e9);    // or one
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 16, 1, 1), 158e9);  // of whole nodes: all
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 2, 8), 24e9);
  EXPECT_DOUBLE_EQ(group_bytes_per_s(sim::load_cluster("c2"), 32, 1), 10e9);  // one link a node
}

// A ring of whole nodes leaves each but one over the network, and goes on within it.
TEST(GroupLatency, IsThatOfAllSteps) {
  const sim::Cluster cluster = sim::load_cluster("c1");  // 1.7 us a link within, 7 between
  EXPECT_NEAR(group_of(cluster, 8, 1).latency_s, (8.4 + 7 * 3.4) * 1e-6, 1e-12);
  EXPECT_NEAR(group_of(cluster, 64, 1).latency_s, (8.4 + 56 * 3.4 + 7 * 14) * 1e-6, 1e-12);
  EXPECT_NEAR(group_of(cluster, 8, 8).latency_s, (8.4 + 7 * 14) * 1e-6, 1e-12);
  EXPECT_NEAR(group_of(cluster, 8, 2).latency_s, (8.4 + 6 * 3.4 + 14) * 1e-6, 1e-12);
  EXPECT_EQ(group_of(cluster, 1, 1).ring_seconds(1e9), 0);
  EXPECT_EQ(group_of(cluster, 8, 1).ring_seconds(0), 0);
  EXPECT_TRUE(group_of(cluster, 8, 2).shares_links(group_of(cluster, 2, 8)));
  EXPECT_FALSE(group_of(cluster, 8, 1).shares_links(group_of(cluster, 2, 8)));
  EXPECT_FALSE(group_of(cluster, 8, 1).shares_links(group_of(cluster, 1, 1)));
}

TEST(AttentionTimeOf, AddsUpPasses) {
  sim::Timeline forward{.ranks = {{.exposed_s = 1}, {.exposed_s = 2}},
                        .end_s = 4,
                        .channels = {{.name = "a", .busy_share = 0.5}, {.name = "b"}}};
  sim::Timeline backward{.ranks = {{}, {}}, .end_s = 12, .channels = {}};
  const AttentionTime time = attention_time({forward, backward});
  EXPECT_EQ(time.forward, 4);
  EXPECT_EQ(time.backward, 12);
  EXPECT_EQ(time.exposed, 1.5);
  EXPECT_EQ(time.link_share, 2.0 / 16) << "of the busiest link";
  EXPECT_EQ(attention_time({}).link_share, 0);
}

// Sums and gathers of Megatron without overlap follow: the terms of the same step, none hidden.
TEST(StepTime, AProgramMayHideNothing) {
  const sim::Cluster cluster = sim::load_cluster("c5");
  const Step step{.model = cost_of(kLlama2), .seq = 65536};
  const Parallelism parts{.mesh = {.cp = 16}, .zero = 3};
  const StepTime beside = step_time(step, parts, cluster, {0.01, 0.02});
  const StepTime behind = step_time(step, parts, cluster, {0.01, 0.02}, {.overlaps = false});
  EXPECT_EQ(behind.hidden, 0);
  EXPECT_GT(beside.hidden, 0.5 * beside.gradients);
  EXPECT_DOUBLE_EQ(beside.total() + beside.hidden, behind.total());
}

}  // namespace
}  // namespace armillary::cost
