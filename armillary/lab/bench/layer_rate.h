// layer_rate.h: measures how fast one attention layer is when it is spread over ranks, beside the
// same layer on one rank and beside its kernel calls alone, in one run.
//
//   sides: "cores"                  only if world > 1: two peaks over one (cores.h)
//          "peak"                   GFLOP/s of as many threads as ranks (peak.h)
//          "one_rank PASS"          the whole sequence on one rank, other cores idle
//          "busy_rank PASS"         the same on every core at once; the mean of their times
//          "STRATEGY PASS"          the sequence spread over all ranks
//          "STRATEGY kernels PASS"  its kernel calls alone, on all ranks at once
//
// PASS is "forward" or "forward+backward"; all sides but the first two are seconds of one layer.
// Ranks have one computing thread each and stay from turn to turn: threads of this process, or
// processes, each of which makes the same LayerRate (process_ranks.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/thread_ranks.h"
#include "armillary/plan/problem.h"

namespace armillary::bench {

struct LayerCase {
  plan::Dtype dtype = plan::Dtype::F32;
  std::int64_t head_dim = 128;
  std::int64_t tokens = 1024;  ///< Tokens of a rank.
  std::int64_t heads = 8;
  std::int64_t kv_heads = 8;
  std::string mask = "causal";  ///< Over tokens * world.
  std::string layout = "zigzag";
  int world = 2;
  std::vector<std::string> strategies = {"ring"};
  bool kernels = true;             ///< Adds the sides "STRATEGY kernels PASS".
  std::string engine = "threads";  ///< For results; make_ranks decides.
  /// Folder for the flight files of the ranks of a strategy, of the last one if there are several;
  /// empty: they are not recorded.
  std::string run_folder;
};

/// The problem of a case on `world` ranks: the sequence has the tokens of all ranks of the case,
/// whatever `world` says. @throws InvalidArgument if it is not legal.
plan::Problem problem_of(const LayerCase& spec, int world);

/// Facts about a strategy that are known before anything is timed. Arrays hold a value for forward
/// and one for forward and backward together.
struct LayerFacts {
  std::string strategy;
  /// Error against fp64 (error_of in attention_case.h), over output and gradients of all ranks, of
  /// the first KV head and its query heads.
  double max_error = 0;
  std::int64_t ops[2] = {};  ///< Ops of a rank in its programs; of the rank that has most.
  /// Buffers that ATen allocates on a rank in one warm layer; of the rank that allocates most.
  std::int64_t allocations[2] = {};
};

/// A case with its layers. One thread calls.
class LayerRate {
 public:
  /// Makes and runs all layers and checks their results. @throws InvalidArgument for a case or a
  /// strategy that is not legal; Error if a result is wrong.
  explicit LayerRate(const LayerCase& spec, const MakeRanks& make_ranks = make_thread_ranks);
  ~LayerRate();

  const std::string& isa() const { return isa_; }  ///< Instruction set of the kernel.
  /// Flops of one layer over all ranks: for each visible pair and query head 4 D forward, 14 D with
  /// backward.
  double flops(bool backward) const;
  const std::vector<LayerFacts>& facts() const { return facts_; }  ///< In the order of the case.
  std::vector<Side> sides();  ///< They must not outlive this object.

 private:
  struct Contest;
  std::unique_ptr<Contest> contest_;
  std::string isa_;
  std::vector<LayerFacts> facts_;
};

/// Names of the passes, in the order of the arrays above.
inline constexpr const char* kPassNames[2] = {"forward", "forward+backward"};

}  // namespace armillary::bench
