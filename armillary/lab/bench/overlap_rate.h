// overlap_rate.h: measures how much of a layer's communication remains visible beside its compute.
//
//   sides: "STRATEGY PASS"             the whole layer
//          "STRATEGY compute PASS"     the same layer, whose messages move nothing (layer_part.h)
//          "STRATEGY messages PASS"    the same messages, without compute
//
//   exposed = (whole - compute) / messages        0: all hidden; 1: none
//
// PASS is as in layer_rate.h, and so are the ranks. The compute side has all costs of the executor,
// so what is exposed is waiting, and what the network takes from the cores.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "armillary/lab/bench/layer.h"
#include "armillary/lab/bench/layer_rate.h"

namespace armillary::bench {

struct OverlapCase {
  LayerCase layer;         ///< Its `kernels` and `run_folder` are not used.
  int ranks_per_node = 1;  ///< Neighbouring ranks that share a host.
};

/// Bytes that each rank sends to ranks of other hosts in one layer: forward, and both passes.
struct OverlapFacts {
  std::string strategy;
  std::vector<std::int64_t> sent_bytes[2];
  /// Those of them in steps of the plan in which the rank attends nothing: the way home of a last
  /// result, or the exchange of heads before the first attend. No engine hides them.
  std::vector<std::int64_t> lone_bytes[2];
};

/// A case with its layers. One thread calls.
class OverlapRate {
 public:
  /// Makes and runs all layers. Results are checked on sequences of at most 256 tokens a rank:
  /// exact ones of long sequences would take longer than the measurement. @throws as LayerRate.
  explicit OverlapRate(const OverlapCase& spec, const MakeRanks& make_ranks = make_thread_ranks);

  const std::string& isa() const { return isa_; }
  const std::vector<OverlapFacts>& facts() const { return facts_; }  ///< In the order of the case.
  std::vector<Side> sides();  ///< They must not outlive this object.

 private:
  struct OverlapLayers {
    std::string strategy;
    std::unique_ptr<Layer> whole;
    std::unique_ptr<Layer> compute;
    std::unique_ptr<Layer> messages;
  };

  std::string isa_;
  std::vector<OverlapFacts> facts_;
  std::list<OverlapLayers> layers_;
};

}  // namespace armillary::bench
