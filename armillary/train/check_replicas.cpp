#include "armillary/train/check_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// Names the first value that is not the same on all ranks of a group; empty: none. Rank numbers
/// are those of the world.
std::string replica_difference(comm::Communicator& group, int world_rank,
                               const std::vector<Store::SharedValue>& values, std::int64_t step) {
  const auto ranks = static_cast<std::size_t>(group.world());
  std::vector<proof::Digest> mine;
  mine.reserve(values.size());
  for (const Store::SharedValue& value : values) mine.push_back(value.digest);
  std::vector<proof::Digest> all(mine.size() * ranks);
  comm::all_gather(group, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t of = i % mine.size();
    if (all[i] == all[of]) continue;
    std::vector<int> in_world(ranks);
    comm::all_gather(group, std::as_bytes(std::span(&world_rank, 1)),
                     std::as_writable_bytes(std::span(in_world)));
    return fmt::format(
        "train: parameter {} of rank {} differs from that of rank {} after step {}; equal ones are "
        "required: memory or a model changed it on one rank; nearest: --resume from a checkpoint",
        values[of].name, in_world[i / mine.size()], in_world[0], step);
  }
  return {};
}

/// Throws the first text that is not empty on every rank.
void fail_together(comm::Communicator& world, const std::string& text) {
  const char mine = text.empty() ? 0 : 1;
  std::vector<char> all(static_cast<std::size_t>(world.world()));
  comm::all_gather(world, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  const auto first = std::ranges::find(all, 1);
  if (first == all.end()) return;
  const std::string told = comm::text_of_rank(world, static_cast<int>(first - all.begin()), text);
  comm::meet(world);
  throw InvalidArgument(told);
}

}  // namespace

void expect_equal_replicas(comm::Communicator& world, const Replicas& replicas, const Store& store,
                           std::int64_t step) {
  const std::vector<Store::SharedValue> values = store.shared_values();
  const auto those = [&](bool Store::SharedValue::*kind) {
    std::vector<Store::SharedValue> some;
    std::ranges::copy_if(values, std::back_inserter(some), kind);
    return some;
  };
  std::string text;
  // A rank compares in all its groups: others wait for it there.
  const auto compare = [&](comm::Communicator& group,
                           const std::vector<Store::SharedValue>& of_group) {
    const std::string difference = replica_difference(group, world.rank(), of_group, step);
    if (text.empty()) text = difference;
  };
  if (store.zero() < 3 && replicas.sharded != nullptr) {
    compare(*replicas.sharded, those(&Store::SharedValue::in_shares));
  }
  if (replicas.copies != nullptr) compare(*replicas.copies, values);
  if (replicas.tp != nullptr && replicas.tp->world() > 1 && store.zero() < 3) {
    compare(*replicas.tp, those(&Store::SharedValue::along_tp));
  }
  fail_together(world, text);
}

}  // namespace armillary::train
