// step_program_test.cpp: closed forms of a training step against its programs: what a rank sends,
// and what it holds at rest and at the peak.
#include "armillary/plan/step/step_program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/traffic.h"
#include "armillary/plan/step/words.h"
#include "armillary/predict/cost/step.h"

namespace armillary::cost {
namespace {

using plan::step::StepProgram;
using plan::step::StepTensor;

/// Numbers of values.
struct SmallUnits {
  std::int64_t table = 32000;
  std::int64_t layer = 4096;
};

/// A model whose head has a norm, and a table of its own or that of the embedding. It has no
/// activations, but all moments of a step.
ModelCost small_model(const SmallUnits& units, int layers, bool tied) {
  constexpr std::int64_t kNorm = 64;
  ModelCost model;
  model.attention.layers = layers;
  model.layer_parameters = model.layer_matmul_parameters = layers * units.layer;
  model.first_parameters = units.table;
  model.last_parameters = kNorm + (tied ? 0 : units.table);
  model.tied = tied;
  model.parameters = model.layer_parameters + model.first_parameters + model.last_parameters;
  model.matmul_parameters = model.layer_matmul_parameters + units.table;
  model.bytes.loss = model.bytes.last_unit = {{}};
  model.bytes.backward = model.bytes.first_unit = {{}};
  return model;
}

StepProgram program_of(const Step& step, const Parallelism& parallelism) {
  const ModelCost& model = step.model;
  plan::step::StepShape shape{.units = {{.name = "embedding", .split = model.first_parameters}},
                              .mesh = parallelism.mesh,
                              .microbatches = microbatches(step, parallelism),
                              .zero = parallelism.zero,
                              .reshard_after_forward = parallelism.reshard_after_forward};
  for (int layer = 0; layer < model.attention.layers; ++layer) {
    shape.units.push_back({.name = "layer" + std::to_string(layer),
                           .split = model.layer_parameters / model.attention.layers});
  }
  shape.units.push_back({.name = "head", .split = model.last_parameters});
  if (model.tied) shape.units.back().uses = {0};
  return build_step(shape);
}

/// Calls `check` for small steps of all kinds.
void for_each_step(const SmallUnits& units,
                   const std::function<void(const Step&, const Parallelism&)>& check) {
  for (const int layers : {1, 2, 3, 5}) {
    for (const bool tied : {false, true}) {
      for (const std::int64_t passes : {1, 2, 3}) {
        for (const MeshShape& mesh :
             std::vector<MeshShape>{{.cp = 4}, {.dp = 2, .cp = 2}, {.cp = 2, .tp = 2}}) {
          for (int zero = 0; zero <= 3; ++zero) {
            SCOPED_TRACE(fmt::format("{} layers, tied {}, {} passes, dp {} cp {} tp {}, ZeRO-{}",
                                     layers, tied, passes, mesh.dp, mesh.cp, mesh.tp, zero));
            check({.model = small_model(units, layers, tied), .seq = 64, .batch = mesh.dp * passes},
                  {.mesh = mesh, .zero = zero});
          }
        }
      }
    }
  }
}

/// Bytes of parameters and gradients that a rank sends.
double bytes_sent(const StepProgram& step, const StepRates& rates) {
  double bytes = 0;
  for (const plan::Op& op : step.ranks[0].ops) {
    const plan::step::StepTraffic traffic = traffic_of(step.tables, step.ranks[0], op);
    const double value = traffic.tensor == StepTensor::Weight ? rates.gathered_bytes
                         : traffic.tensor == StepTensor::Grad ? rates.gradient_bytes
                                                              : 0;
    bytes += value * traffic.rounds * static_cast<double>(traffic.values) * (traffic.ranks - 1) /
             traffic.ranks;
  }
  return bytes;
}

TEST(StepTime, MovesTheBytesOfTheProgram) {
  constexpr double kBytesPerSecond = 1e9;
  sim::Cluster cluster = sim::load_cluster("c6");
  cluster.messages.latency_s = 0;
  cluster.links = {{.from = "device", .to = "switch", .bytes_per_s = kBytesPerSecond}};
  for_each_step({}, [&](const Step& step, const Parallelism& parallelism) {
    const StepRates rates;
    const double bytes = bytes_sent(program_of(step, parallelism), rates);
    const double seconds = step_time(step, parallelism, cluster, {}, rates).gradients;
    EXPECT_NEAR(seconds * kBytesPerSecond, bytes, 1e-9 * bytes);
  });
}

TEST(StepMemory, HoldsTheBytesOfTheProgram) {
  const ParameterBytes bytes{.parameter = 4, .gradient = 4, .optimizer = 8};
  for (const SmallUnits& units : {SmallUnits{}, SmallUnits{.table = 2048, .layer = 8192}}) {
    for_each_step(units, [&](const Step& step, const Parallelism& parallelism) {
      for (const bool reshard : {true, false}) {
        Parallelism parts = parallelism;
        parts.reshard_after_forward = reshard;
        const StepProgram program = program_of(step, parts);
        const plan::step::StepBytes at_rest = bytes_of(program.tables, program.ranks[0]);
        const StepMemory memory = step_memory(step, parts, {}, bytes);
        EXPECT_EQ(memory.parameters + memory.gradients + memory.optimizer, at_rest.rest);
        EXPECT_EQ(memory.total(), at_rest.peak) << "reshard_after_forward " << reshard;
      }
    });
  }
}

}  // namespace
}  // namespace armillary::cost
