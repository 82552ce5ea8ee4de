// methods.h: USP's Table 2 (arXiv:2405.07719, section 4): what each way to divide a layer sends and
// holds.
#pragma once

#include <string>
#include <vector>

#include "armillary/predict/cost/step.h"

namespace armillary::cost {

/// Elements that a device sends in attention of one layer, forward and backward, with every token
/// of the step seen by every other.
struct SequenceElements {
  double heads = 0;  ///< All-to-alls: Q, K, V, Out and their gradients.
  double ring = 0;   ///< Ring: K, V in both passes, and sums of dK, dV (fp32; all others bf16).
  double total() const { return heads + ring; }
};
/// cp ranks: u ways over heads, rings of cp / u. A KV head that several ways read goes to each.
/// Exact if u, which divides cp and the heads, divides the KV heads or is a multiple of them.
SequenceElements sequence_elements(const Step& step, int cp, int u);

/// A row of USP's Table 2: elements of collectives, and bytes, of one layer on each of n devices,
/// forward and backward. 2 (n - 1) / n elements for each element of an all-reduce, (n - 1) / n of
/// an all-gather or reduce-scatter, (n - 1) / n^2 of a tensor that all ranks share in an
/// all-to-all. A pipeline divides layers: its row is the mean over them.
struct MethodCost {
  std::string method;
  double parameter_elements = 0;
  double activation_elements = 0;
  double parameter_bytes = 0;
  double optimizer_bytes = 0;
  double activation_bytes = 0;
};
/// SP-Ulysses, SP-Ring, DP, DP with ZeRO-1, SP-Unified with ZeRO-1, 2 and 3, TP, TP-sp and PP.
/// SP-Unified has as many ways over heads as it can, and rings over the rest. Rows that cannot be
/// are left out: SP-Ulysses and TP if n does not divide the heads, PP if not the layers.
std::vector<MethodCost> method_costs(const Step& step, int devices);

}  // namespace armillary::cost
