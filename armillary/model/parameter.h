// parameter.h: a parameter before it has memory: name, shape, cut over the ranks along tp, and
// initial values, all of the whole model. A store (train/store.h) gives it memory on a rank.
//
//   Parameter --range_of(rank of tp)--> GlobalRange --draw_initial_values--> the slice of the whole
//             '-copies_along_tp-------> the ranks along tp over which its gradient is summed
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "armillary/model/global_range.h"

namespace armillary::model {

/// The dim along which ranks along tp share a parameter. Matrices are [out, in].
enum class TpSplit : std::uint8_t {
  Whole,       ///< None: every rank has all of it.
  Columns,     ///< Dim 0: each rank some of the outputs.
  Rows,        ///< Dim 1: each rank some of the inputs; its products are partial sums.
  Vocabulary,  ///< Dim 0: each rank some of the words.
};

/// The distribution of initial values.
struct Init {
  double mean = 0;
  double deviation =
      0;  ///< Standard deviation of a normal distribution; 0: every value is the mean.
};

struct Parameter {
  std::string name;  ///< In the whole model: "layers.0.attention.wq.weight".
  Shape shape;       ///< Sizes of the whole parameter.
  TpSplit placement = TpSplit::Whole;
  /// Neighbours that stay together when it is cut, such as the outputs of one head.
  std::int64_t grain = 1;
  /// The units (model.h) that use it. The first one owns it: it has one value, one gradient and one
  /// state of the optimizer.
  std::vector<std::string> units = {};
  Init init = {};
  // How m ranks share a grain, if there are m for each, as for KV heads fewer than ranks. Without
  // either of the two, more ranks than grains are refused.
  /// The grain is cut on, in pieces of this size: the query heads of a KV head. 0: it is not.
  std::int64_t piece = 0;
  bool copied = false;  ///< Each of them has all of the grain: a KV head.
  /// Dim 0 are experts, which ranks along ep divide (expert_range_of). Ranks along tp do not: each
  /// has tokens of its own for them. A unit that owns experts owns nothing else.
  bool is_expert = false;
  /// Above 0: no weight, but a number that an update moves by this against the sign of its
  /// gradient, which counts in no norm.
  double sign_rate = 0;
};

/// The part of rank `index` of `ranks` along tp: grains [i n / P, (i + 1) n / P) of n. Shards may
/// differ by a grain, which is exact where all parameters of a layer are cut in as many grains.
/// With m ranks for each grain, rank i has a part of grain i / m, or all of it: pieces [j q / m, (j
/// + 1) q / m) of q with j = i % m.
/// @throws InvalidArgument unless whole grains make up the dim and each rank gets one, or ranks are
/// a multiple of grains that can be shared and each gets a piece; with the nearest legal choice.
GlobalRange range_of(const Parameter& parameter, int index, int ranks);

/// The part of rank `index` of `ranks` along ep of a parameter of experts: [i X / P, (i + 1) X / P)
/// of X. @throws InvalidArgument for more ranks than experts.
GlobalRange expert_range_of(const Parameter& parameter, int index, int ranks);

/// The number of ranks along tp that have the same range of a parameter, the neighbours with the
/// same index / copies. Each uses it for tokens or heads of its own, so its gradient is partial: it
/// is to be summed over exactly these ranks, and a norm counts the parameter on one of them. 1: a
/// range of its own, whose gradient is whole, or experts, whose ranks are others. Requires legal
/// ranks.
int copies_along_tp(const Parameter& parameter, int ranks);

/// Checks the parameters of a model with these units on `tp` ranks: units have names of their own,
/// and each parameter has one too, a shape, and units that are declared; experts are owned by units
/// of their own; all values together are fewer than 2^56. @throws InvalidArgument.
void check_parameters(std::span<const Parameter> parameters, std::span<const std::string> units,
                      int tp);

}  // namespace armillary::model
