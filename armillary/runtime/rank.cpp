// rank.cpp: a change of device drops what was made for the one before. The recorder is given the
// version of this program, since another one may read its files.
#include "armillary/runtime/rank.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/proof/digest.h"
#include "armillary/runtime/group_state.h"

namespace armillary::runtime {

Rank& Rank::of(const comm::Communicator& comm) {
  std::unique_ptr<comm::RankState>& state = comm.rank_state();
  if (state == nullptr) state = std::make_unique<Rank>(comm.root());
  return static_cast<Rank&>(*state);  // Nobody else keeps one.
}

Rank::Rank(const comm::Communicator& root) : root_(root) {}
Rank::~Rank() = default;

void Rank::use(std::shared_ptr<Device> device) {
  if (std::ranges::any_of(groups_, [](const auto& group) { return group.second->busy; })) {
    fail<InvalidArgument>(
        "rank: the device was changed while a call is in progress; finish it first");
  }
  executions_ = {};  // idle executions have memory on the previous device
  device_ = std::move(device);
}

void Rank::record_in(const std::string& run_folder) {
  recorder_ = std::make_unique<recorder::Recorder>(
      run_folder,
      recorder::RecordedRank{
          .world = root_.world(), .rank = root_.rank(), .program = std::string(proof::version())});
  for (const auto& [comm, state] : groups_) state->recorded.reset();
}

std::uint8_t Rank::recorded_group(const comm::Communicator& comm) {
  if (recorder_ == nullptr) return 0;
  std::optional<std::uint8_t>& number = group(comm).recorded;
  if (!number) {
    std::vector<int> ranks(static_cast<std::size_t>(comm.world()));
    for (int rank = 0; rank < comm.world(); ++rank) ranks[rank] = comm.root_rank(rank);
    number = recorder_->group(ranks);
  }
  return *number;
}

GroupState& Rank::group(const comm::Communicator& comm) {
  std::unique_ptr<GroupState>& state = groups_[&comm];
  if (state == nullptr) state = std::make_unique<GroupState>();
  return *state;
}

void Rank::forget(const comm::Communicator& group) noexcept {
  groups_.erase(&group);
}

}  // namespace armillary::runtime
