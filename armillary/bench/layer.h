// layer.h: one attention layer on a group of ranks, and its kernel calls alone. For the sources of
// this folder.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/bench/block.h"
#include "armillary/bench/ranks.h"
#include "armillary/plan/strategy.h"

namespace armillary::bench {

/// A layer that can be run again and again on ranks of its own.
class Layer {
 public:
  /// `whole` holds the tokens of the whole sequence; ranks copy theirs.
  Layer(const plan::Problem& problem, const std::string& strategy, const Sample& whole);

  /// Output and gradients {out, dq, dk, dv} over the whole sequence, after one run; later runs are
  /// repeated so often that they last.
  std::vector<at::Tensor> first_run();

  void start(bool backward);
  double wait();  ///< Seconds of one layer.
  double run(bool backward) {
    start(backward);
    return wait();
  }

  /// Most buffers that a rank allocates in one layer.
  std::int64_t allocations(bool backward);

 private:
  std::vector<at::Tensor> step(comm::Communicator& comm, bool backward);

  std::vector<at::Tensor> rows_;  ///< By rank: positions of its tokens.
  std::vector<Sample> parts_;     ///< By rank.
  attention::AttentionOptions options_;
  std::array<Repeats, 2> repeats_;
  Ranks ranks_;  ///< Last: its threads use the above.
};

/// The kernel calls of a layer's programs, one for every attend, without anything around them.
class LayerKernels {
 public:
  LayerKernels(const plan::Problem& problem, const std::string& strategy, const Sample& whole);
  ~LayerKernels();

  /// Seconds of the calls of one layer, on all ranks at once.
  double run(bool backward);

 private:
  struct Calls;
  plan::Mask mask_;  ///< Pairs point to it.
  std::vector<std::unique_ptr<Calls>> of_rank_;
  std::array<Repeats, 2> repeats_;
  Ranks ranks_;
};

/// Most ops of a rank in the programs of one layer.
std::int64_t most_ops(const plan::Problem& problem, const std::string& strategy, bool backward);

}  // namespace armillary::bench
