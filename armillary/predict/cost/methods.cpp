// methods.cpp: the table's rows by its formulas. An all-to-all or ring of attention is counted in
// sequence_elements(); the collectives of parameters are multiples of p (n - 1) / n.
#include "armillary/predict/cost/methods.h"

#include <algorithm>
#include <numeric>

namespace armillary::cost {
namespace {

constexpr ParameterBytes kBytes;

}  // namespace

SequenceElements sequence_elements(const Step& step, int cp, int u) {
  const double tokens = static_cast<double>(step.seq) * static_cast<double>(step.batch);
  const ModelAttention& attention = step.model.attention;
  const double q = tokens * static_cast<double>(attention.heads * attention.head_dim);
  const double kv = tokens * static_cast<double>(std::max<std::int64_t>(attention.kv_heads, u) *
                                                 attention.head_dim);
  const int ring = cp / u;
  // Q, Out and their gradients have the size of q, K, V and theirs that of kv: four each. On a ring
  // K and V walk in both passes, dK and dV in one.
  return {.heads = 4 * (q + kv) / cp * (u - 1) / u, .ring = 6 * kv * (ring - 1) / cp};
}

std::vector<MethodCost> method_costs(const Step& step, int devices) {
  const auto [layers, heads, kv_heads, head_dim] = step.model.attention;
  const double n = devices;
  const double share = (n - 1) / n;
  Step layer{.model = step.model.with_layers(1), .seq = step.seq, .batch = step.batch};
  layer.model.bytes.last = 0;  // the table has no last unit
  const auto p = static_cast<double>(layer.model.layer_parameters);
  const double hidden = static_cast<double>(step.seq) * static_cast<double>(step.batch) *
                        static_cast<double>(step.model.bytes.input) / kBytes.parameter;
  const double act = step_memory(layer, {.microbatch = 0}).activations;
  // Inputs of norms and of products are whole on every device of TP; the rest is split.
  const double whole = 4 * kBytes.parameter * hidden;
  const double unified =
      sequence_elements(step, devices, std::gcd(devices, static_cast<int>(heads))).total();
  const double params = (kBytes.parameter + kBytes.gradient) * p;
  const double states = kBytes.optimizer * p;
  // 2 p: a reduce-scatter and an all-gather, alone or as one all-reduce. ZeRO-3 gathers parameters
  // again for backward: 3 p. TP all-reduces activations twice forward and twice backward: 8.
  std::vector<MethodCost> rows{
      {"SP-Ring", 2 * p * share, sequence_elements(step, devices, 1).total(), params, states,
       act / n},
      {"DP", 2 * p * share, 0, params, states, act / n},
      {"DP + ZeRO-1", 2 * p * share, 0, params, states / n, act / n},
      {"SP-Unified + ZeRO-1", 2 * p * share, unified, params, states / n, act / n},
      {"SP-Unified + ZeRO-2", 2 * p * share, unified,
       kBytes.parameter * p + kBytes.gradient * p / n, states / n, act / n},
      {"SP-Unified + ZeRO-3", 3 * p * share, unified, params / n, states / n, act / n}};
  if (heads % devices == 0) {
    rows.insert(rows.begin(), {"SP-Ulysses", 2 * p * share, unified, params, states, act / n});
    rows.push_back(
        {"TP", 0, 8 * hidden * share, params / n, states / n, whole + (act - whole) / n});
    rows.push_back({"TP-sp", 0, 8 * hidden * share, params / n, states / n, act / n});
  }
  if (layers % devices == 0) {
    const double passed_on = devices == 1 ? 0 : 2 * hidden / static_cast<double>(layers);
    rows.push_back({"PP", 0, passed_on, params / n, states / n, act / n});
  }
  return rows;
}

}  // namespace armillary::cost
