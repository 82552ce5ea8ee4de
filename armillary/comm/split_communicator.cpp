// Groups made of groups. All ranks of the group that is split tell each other their color, key and
// the lanes they have taken; then each computes the new group by itself.
#include "armillary/comm/split_communicator.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// The arguments of one rank's call of split(), and the blocks of lanes it has taken.
struct SplitArguments {
  std::uint64_t first = 0;  ///< LaneBlocks::first()
  std::int64_t end = 0;     ///< LaneBlocks::end()
  int color = 0;
  int key = 0;
};

std::vector<SplitArguments> asked_by_all(Communicator& comm, const SplitArguments& mine) {
  std::vector<SplitArguments> all(comm.world());
  all_gather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

std::uint64_t LaneBlocks::first() const {
  std::uint64_t bits = 1;  // That of the root.
  for (const int block : taken_) {
    if (block < kTold) bits |= std::uint64_t{1} << static_cast<unsigned>(block);
  }
  return bits;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  const LaneBlocks& blocks = root().lane_blocks();
  const std::vector<SplitArguments> all = asked_by_all(
      *this, {.first = blocks.first(), .end = blocks.end(), .color = color, .key = key});
  // The first block that none of these ranks has taken; behind the told ones, that behind all taken
  // ones. All colors get the same: their groups have no rank in common.
  std::uint64_t first = 1;
  std::int64_t end = 1;
  for (const SplitArguments& arguments : all) {
    first |= arguments.first;
    end = std::max(end, arguments.end);
  }
  const int free = std::countr_one(first);
  const std::int64_t block = free < LaneBlocks::kTold ? free : end;
  if (block >= std::numeric_limits<int>::max() / root().lanes()) {
    fail<CommError>("split: no lanes are left; fewer groups are required");
  }
  if (color < 0) return nullptr;

  // Members in the order of key, then rank; translated last, to ranks of the root.
  std::vector<int> members;
  for (int rank = 0; rank < world_; ++rank) {
    if (all[rank].color == color) members.push_back(rank);
  }
  std::ranges::stable_sort(members, {}, [&](int rank) { return all[rank].key; });
  const auto own = std::ranges::find(members, rank_) - members.begin();
  for (int& member : members) member = root_rank(member);
  return std::make_unique<SplitCommunicator>(root(), std::move(members), static_cast<int>(own),
                                             static_cast<int>(block), timeout_s_);
}

std::unique_ptr<Communicator> group_of_one(Communicator& group) {
  return std::make_unique<SplitCommunicator>(
      group.root(), std::vector<int>{group.root_rank(group.rank())}, 0, 0, group.timeout_s());
}

void SplitCommunicator::do_start(std::span<const Message> batch, std::span<Request> requests) {
  translated_.assign(batch.begin(), batch.end());
  for (Message& message : translated_) {
    message.peer = ranks_[message.peer];
    message.lane += block_ * root().lanes();
  }
  root().do_start(translated_, requests);
  translated_.clear();  // Lets go of the owners of messages.
}

}  // namespace armillary::comm
