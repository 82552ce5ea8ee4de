// live_rate.h: measures layers on ranks, and simulates the same plans on a described cluster.
//
//   sides: "STRATEGY PASS"            the whole layer
//          "STRATEGY compute PASS"    the same layer, whose messages move nothing
//
// PASS and ranks are as in lab/bench/layer_rate.h. The second side shows whether it is compute or
// messages that a simulation has wrong.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/layer.h"
#include "armillary/lab/bench/layer_rate.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::calibrate {

struct LiveCase {
  bench::LayerCase layer;  ///< Its `kernels` and `run_folder` are not used.
  sim::Cluster cluster;
};

/// Simulated seconds. Arrays hold a value for forward and one for forward and backward together.
struct Simulated {
  std::string strategy;
  std::array<double, 2> seconds = {};
  /// Compute of the rank that computes most, with the host's part of a call.
  std::array<double, 2> compute_seconds = {};
};

/// A case with its layers. One thread calls.
class LiveRate {
 public:
  /// Simulates all layers, makes them and runs them. Results are checked on sequences of at most
  /// 256 tokens a rank. @throws as bench::LayerRate and sim::simulate.
  explicit LiveRate(const LiveCase& spec,
                    const bench::MakeRanks& make_ranks = bench::make_thread_ranks);

  const std::string& isa() const { return isa_; }
  const std::vector<Simulated>& simulated() const { return simulated_; }  ///< As in the case.
  std::vector<bench::Side> sides();  ///< They must not outlive this object.

 private:
  struct LiveLayers {
    std::string strategy;
    std::unique_ptr<bench::Layer> whole;
    std::unique_ptr<bench::Layer> compute;
  };
  std::string isa_;
  std::vector<Simulated> simulated_;
  std::list<LiveLayers> layers_;
};

/// As lab/bench/result_json.h: a line for every strategy and pass, with "seconds",
/// "simulated_seconds" and "ratio", simulated over measured; the same of compute.
nlohmann::ordered_json facts_json(const LiveCase& spec, const LiveRate& rate);
std::vector<nlohmann::ordered_json> result_lines(const LiveCase& spec, const LiveRate& rate,
                                                 const bench::TurnSummary& turns);

}  // namespace armillary::calibrate
