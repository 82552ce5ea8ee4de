// calibrate.h: describes the machine it runs on as a cluster, by measuring it.
//
//   kernels    one curve for each pass, mask, dtype and head dim      kernels.h
//   memory     bytes/s of merges and sums                             memory.h
//   products   flop/s of matrix products                              products.h
//   messages   latency and bandwidth of the engine, by bytes          messages.h
//   host       what a call and an op cost beside all that             overhead.h
//                           |
//                           v
//   sim::Cluster --to_toml--> a file for `armillary simulate`
//
// All ranks do the same at the same time, as in a run: they share caches, memory, the clock of the
// cores and the network.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "armillary/lab/bench/ranks.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::calibrate {

/// The ranks and sizes that are measured. Ranks r and r + 1 are neighbours on a node, which has
/// `ranks_per_node`.
struct CalibrateCase {
  std::string name = "calibrated";
  std::string engine = "threads";  ///< "threads", "mpi" or "c10d": how the ranks meet.
  int world = 2;
  int ranks_per_node = 2;
  std::vector<plan::Dtype> dtypes = {plan::Dtype::F32, plan::Dtype::Bf16};
  std::vector<int> head_dims = {64, 128};
  int heads = 4;                    ///< Heads of a kernel call.
  std::int64_t most_tokens = 4096;  ///< The largest block; larger ones are as fast.
  int cores = 0;                    ///< Cores that all ranks share; 0: those of each node.
};

/// Told of each part before it is measured.
using Progress = std::function<void(const std::string& part)>;

/// The machine as a cluster of `world` devices, one for each rank. Takes some seconds for each
/// dtype and head dim; blocks of all sizes are held at once, four times the memory of the largest.
/// Collective: processes that are ranks all call it, and get the same result up to the size of
/// their memory. @throws InvalidArgument if the case is illegal; the exception of a rank.
sim::Cluster calibrate(const CalibrateCase& spec, const bench::MakeRanks& make_ranks,
                       const Progress& progress = {});

}  // namespace armillary::calibrate
