// step_overlap_rate.h: measures how much of the communication of ZeRO remains visible beside the
// compute of a training step, as overlap_rate.h does of a layer.
//
//   sides: "step"            gradients, norm and update of a Llama, ranks along dp
//          "step pace"       the same, whose messages have no bytes (still_communicator.h): ranks
//                            wait for each other's compute
//          "step compute"    the same without messages
//          "step messages"   its gathers and sums alone, in the order of the program
//
//   exposed = (whole - compute) / messages        0: all hidden; 1: none
//   pace    = (pace - compute) / messages         the part of it that is no communication
//
// All steps add the summands of a sum, so that time is not exposed. Parameters stay as they are:
// the learning rate is 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/link_communicator.h"
#include "armillary/lab/bench/step_messages.h"
#include "armillary/lab/bench/thread_ranks.h"

namespace armillary::bench {

struct StepOverlapCase {
  int world = 2;
  int zero = 3;  ///< 1 to 3.
  int layers = 8;
  int dim = 512;
  int heads = 8;
  std::int64_t tokens = 1024;      ///< One sequence of a rank.
  std::string engine = "threads";  ///< For results; make_ranks decides.
  /// Rate of a link of each rank that needs no core (link_communicator.h); 0: memory. Ranks are
  /// threads.
  double link_bytes_per_s = 0;
};

struct StepOverlapFacts {
  double loss = 0;
  double grad_norm = 0;
  StepValues values;
};

/// A case with its stores. One thread calls.
class StepOverlapRate {
 public:
  /// Takes all steps once, and that of one rank on the sequences of all. @throws InvalidArgument
  /// for a world below 2 or another stage; Error if loss or norm are not those of one rank.
  explicit StepOverlapRate(const StepOverlapCase& spec,
                           const MakeRanks& make_ranks = make_thread_ranks);
  ~StepOverlapRate();

  const StepOverlapFacts& facts() const { return facts_; }
  std::vector<Side> sides();  ///< They must not outlive this object.

 private:
  class StepRank;

  /// The communicator of a rank, behind its link if it has one.
  comm::Communicator& linked(comm::Communicator& comm);

  StepOverlapFacts facts_;
  std::unique_ptr<Links> links_;
  std::vector<std::unique_ptr<LinkCommunicator>> linked_;  ///< By rank.
  /// By rank; null for those of other processes.
  std::vector<std::unique_ptr<StepRank>> whole_, paced_, compute_;
  std::vector<std::unique_ptr<StepMessages>> messages_;
  std::unique_ptr<Ranks> ranks_;  ///< Last: its threads use the above.
};

}  // namespace armillary::bench
