// layer.h: one attention layer on a group of ranks, and its kernel calls alone. For the sources of
// this folder.
//
//   Layer          what a model pays for: agreement, executor, messages and kernels
//   LayerKernels   the kernel calls of the same programs, on tensors that are there from the start
//
// The difference of both is the cost of spreading a layer over ranks. A run is repeated so often
// that it lasts about 2 ms (repeats_for in ranks.h); times are those of one layer.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/lab/bench/ranks.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/runtime/rank.h"

namespace armillary::bench {

/// An attention layer, run again and again on ranks of its own. `backward` means forward and
/// backward together, as autograd runs them. One thread calls.
class Layer {
 public:
  /// `whole` holds the tokens of the whole sequence; each rank copies its own. With a run folder,
  /// each rank has a flight recorder there; when the layer dies, the rank has ended well, unless
  /// its last run failed or goes on. @throws IoError as recorder::Recorder.
  Layer(const plan::Problem& problem, const std::string& strategy, const Sample& whole,
        std::unique_ptr<Ranks> ranks, const std::string& run_folder = "");
  ~Layer();
  Layer(const Layer&) = delete;  // Its ranks call it.
  Layer& operator=(const Layer&) = delete;

  /// Runs forward and backward once: {out, dq, dk, dv} over the whole sequence, or nothing if no
  /// rank of the layer runs in this process. Then finds out how often later runs are repeated. Call
  /// it first: until then a run is one layer, and cold.
  std::vector<at::Tensor> first_run();

  /// Starts a run on all ranks and returns at once, so that several layers can run side by side.
  void start(bool backward);
  /// Seconds of one layer, of the run that was started. @throws the exception of a rank.
  double wait();
  /// start() and wait() together.
  double run(bool backward) {
    start(backward);
    return wait();
  }

  /// Buffers that ATen allocates on a rank in one layer; of the rank that allocates most.
  std::int64_t allocations(bool backward);

 private:
  /// Runs a work on all ranks and waits for it.
  double run_all(const Ranks::Work& work);

  /// One layer on the calling rank.
  std::vector<at::Tensor> run_once(comm::Communicator& comm, bool backward);

  /// The results of the ranks of this process, over the whole sequence.
  std::vector<at::Tensor> joined(const std::vector<std::vector<at::Tensor>>& parts) const;

  std::vector<at::Tensor> rows_;  ///< By rank: global positions of its tokens.
  std::int64_t tokens_ = 0;       ///< Sum over all ranks.
  std::vector<Sample> parts_;     ///< By rank: its tokens.
  attention::AttentionOptions options_;
  std::array<Repeats, 2> repeats_;  ///< Without and with backward.
  /// By rank: the state that has its recorder; null without one.
  std::vector<runtime::Rank*> recording_;
  bool is_idle_ = true;           ///< No run goes on, and the last one did not fail.
  std::unique_ptr<Ranks> ranks_;  ///< Last: its threads use the above.
};

/// The kernel calls of a layer's programs, one for every op that attends, without messages or an
/// executor. One thread calls.
class LayerKernels {
 public:
  /// Makes the programs of the ranks of this process and, for each of their kernel calls, tensors
  /// of its own with the values of `whole`.
  LayerKernels(const plan::Problem& problem, const std::string& strategy, const Sample& whole,
               std::unique_ptr<Ranks> ranks);
  ~LayerKernels();

  /// Seconds of the calls of one layer, on all ranks at the same time. A rank makes its calls one
  /// after the other.
  double run(bool backward);

 private:
  struct Calls;      ///< The calls of one rank.
  plan::Mask mask_;  ///< Pairs of the calls point to it.
  std::vector<std::unique_ptr<Calls>> of_rank_;
  std::array<Repeats, 2> repeats_;  ///< Without and with backward.
  std::unique_ptr<Ranks> ranks_;
};

/// Ops of a rank in the programs of one layer, after lowering; of the rank that has most.
std::int64_t most_ops(const plan::Problem& problem, const std::string& strategy, bool backward);

}  // namespace armillary::bench
