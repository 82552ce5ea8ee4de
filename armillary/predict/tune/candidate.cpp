// candidate.cpp: candidates as texts, and placements as lists of devices.
#include "armillary/predict/tune/candidate.h"

#include <fmt/format.h>

#include "armillary/core/error.h"

namespace armillary::tune {

std::string to_string(const Placement& placement) {
  return placement.stride == 1 ? "by_node" : fmt::format("stride:{}", placement.stride);
}

std::vector<int> devices(const Placement& placement, int world) {
  ARMILLARY_CHECK(placement.stride >= 1 && world % placement.stride == 0);
  const int across = world / placement.stride;
  std::vector<int> devices(world);
  for (int rank = 0; rank < world; ++rank) {
    devices[rank] = rank % across * placement.stride + rank / across;
  }
  return devices;
}

std::string to_string(const Candidate& candidate) {
  std::string text =
      fmt::format("{}, {}", to_string(candidate.strategy), to_string(candidate.layout));
  if (candidate.transfer_dtype != plan::TransferDtype::Accumulator)
    text += ", transfer dtype " + to_string(candidate.transfer_dtype);
  if (candidate.placement.stride != 1) text += ", placement " + to_string(candidate.placement);
  return text;
}

plan::Problem problem_of(const Question& question, const Candidate& candidate) {
  plan::Problem problem = question.problem;
  problem.layout = candidate.layout;
  problem.transfer_dtype = candidate.transfer_dtype;
  return problem;
}

}  // namespace armillary::tune
