// Groups made of groups. All ranks of the group that is split tell each other their color, key and
// the lanes they have taken so far; then each computes the new group by itself.
#include "armillary/comm/split.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Kept with the group that was split first: the lanes below `end` are taken on this rank, by that
/// group or by groups made of it.
struct TakenLanes {
  int end = 0;
};

/// The arguments of one rank's call of split(), and the end of the lanes it has taken.
struct Asked {
  int color = 0;
  int key = 0;
  int taken = 0;
};

std::vector<Asked> asked_by_all(Communicator& comm, const Asked& mine) {
  std::vector<Asked> all(comm.world());
  all_gather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

std::unique_ptr<Communicator> split_group(Communicator& comm, Communicator& root,
                                          const std::vector<int>& ranks, int color, int key) {
  TakenLanes& taken = root.attachment<TakenLanes>();
  taken.end = std::max(taken.end, root.lanes());
  const std::vector<Asked> all = asked_by_all(comm, {color, key, taken.end});
  // The new lanes begin behind those that any of these ranks has taken. All colors get the same
  // ones: their groups have no rank in common.
  const int first_lane = std::ranges::max(all, {}, &Asked::taken).taken;
  if (first_lane > std::numeric_limits<int>::max() - root.lanes()) {
    fail<CommError>("split: no lanes are left; fewer groups are required");
  }
  taken.end = first_lane + root.lanes();
  if (color < 0) return nullptr;

  // Members in the order of key, then rank; translated last, from ranks of `comm` to those of
  // `root`.
  std::vector<int> members;
  for (int rank = 0; rank < comm.world(); ++rank) {
    if (all[rank].color == color) members.push_back(rank);
  }
  std::ranges::stable_sort(members, {}, [&](int rank) { return all[rank].key; });
  const auto own = std::ranges::find(members, comm.rank()) - members.begin();
  for (int& member : members) member = ranks[member];
  return std::make_unique<SplitCommunicator>(root, std::move(members), static_cast<int>(own),
                                             first_lane, comm.timeout_s());
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  std::vector<int> ranks(world_);
  std::iota(ranks.begin(), ranks.end(), 0);
  return split_group(*this, *this, ranks, color, key);
}

std::unique_ptr<Communicator> SplitCommunicator::split(int color, int key) {
  return split_group(*this, root_, ranks_, color, key);
}

void SplitCommunicator::do_start(std::span<const Message> batch, std::span<Request> requests) {
  translated_.assign(batch.begin(), batch.end());
  for (Message& message : translated_) {
    message.peer = ranks_[message.peer];
    message.lane += first_lane_;
  }
  root_.do_start(translated_, requests);
  translated_.clear();  // Lets go of the owners of messages.
}

}  // namespace armillary::comm
