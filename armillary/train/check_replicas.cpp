// check_replicas.cpp: digests of what a group holds alike, gathered in the group. All groups are
// compared before a rank throws: others wait for it there.
#include "armillary/train/check_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// A digest, and the rank of the world that has what it is of; -1: none.
struct HeldDigest {
  proof::Digest digest;
  std::int64_t rank = -1;
};

/// Those of all ranks of a group, one rank after the other.
std::vector<HeldDigest> gathered_digests(comm::Communicator& group,
                                         const std::vector<HeldDigest>& mine) {
  std::vector<HeldDigest> all(mine.size() * static_cast<std::size_t>(group.world()));
  comm::all_gather(group, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// A value that two ranks of the world have not the same.
struct ReplicaDifference {
  std::size_t value = 0;  ///< Its number in the list.
  std::int64_t rank = 0;
  std::int64_t other = 0;  ///< That of the first rank of the group.
};

/// The first value of a list that is not the same on all ranks of a group.
std::optional<ReplicaDifference> difference_in(comm::Communicator& group,
                                               const std::vector<HeldDigest>& mine) {
  if (mine.empty()) return {};
  const std::vector<HeldDigest> all = gathered_digests(group, mine);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t of = i % mine.size();
    if (!(all[i].digest == all[of].digest)) return ReplicaDifference{of, all[i].rank, all[of].rank};
  }
  return {};
}

/// The parts of a list, each as the replica that owns it has it.
std::vector<HeldDigest> whole_list(comm::Communicator& sharded,
                                   const std::vector<HeldDigest>& mine) {
  std::vector<HeldDigest> whole(mine.size());
  const std::vector<HeldDigest> all = gathered_digests(sharded, mine);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].rank >= 0) whole[i % mine.size()] = all[i];
  }
  return whole;
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

/// Compares lists in groups, and keeps the text of the first difference.
class ReplicaComparison {
 public:
  ReplicaComparison(comm::Communicator& world, std::int64_t step) : world_(world), step_(step) {}

  void compare(comm::Communicator& group, const std::vector<Store::SharedValue>& values) {
    std::vector<HeldDigest> mine;
    std::vector<std::string> names;
    for (const Store::SharedValue& value : values) {
      mine.push_back({value.digest, world_.rank()});
      names.push_back(value.name);
    }
    keep(difference_in(group, mine), names);
  }

  /// The parts are those of all ranks of `sharded` together.
  void compare(comm::Communicator& group, comm::Communicator& sharded,
               const std::vector<Store::SharedPart>& parts) {
    if (parts.empty()) return;
    std::vector<HeldDigest> mine(parts.size());
    std::vector<std::string> names;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].digest) mine[i] = {*parts[i].digest, world_.rank()};
      names.push_back(parts[i].name);
    }
    keep(difference_in(group, whole_list(sharded, mine)), names);
  }

  void finish() { fail_together(world_, text_); }

 private:
  void keep(const std::optional<ReplicaDifference>& difference,
            const std::vector<std::string>& names) {
    if (!difference || !text_.empty()) return;
    text_ = fmt::format(
        "train: parameter {} of rank {} differs from that of rank {} after step {}; equal ones are "
        "required: memory or a model changed it on one rank; nearest: --resume from a checkpoint",
        names[difference->value], difference->rank, difference->other, step_);
  }

  comm::Communicator& world_;
  const std::int64_t step_;
  std::string text_;
};

template <class Shared>
std::vector<Shared> some_of(const std::vector<Shared>& all,
                            const std::function<bool(const Shared&)>& is_one) {
  std::vector<Shared> some;
  std::ranges::copy_if(all, std::back_inserter(some), is_one);
  return some;
}

}  // namespace

void expect_equal_start(const comm::Mesh& mesh, const Store& store) {
  std::string text;
  const auto compare = [&](comm::Communicator& group, const proof::Digest& digest) {
    const auto difference = difference_in(group, {{digest, mesh.world().rank()}});
    if (!difference || !text.empty()) return;
    text = fmt::format(
        "train: the parameters of rank {} differ from those of rank {} before the first step; "
        "equal ones are required: draw them from the same seed",
        difference->rank, difference->other);
  };
  compare(mesh.replicas(), store.digest());
  // Copies have the same experts as replicas of experts.
  for (comm::Communicator* const group : {store.replicas().experts, store.replicas().copies}) {
    if (group != nullptr) compare(*group, store.expert_digest());
  }
  for (const auto& [along_tp, digest] : store.digests_along_tp()) {
    compare(*store.sharers(along_tp), digest);
  }
  fail_together(mesh.world(), text);
}

void expect_equal_replicas(comm::Communicator& world, const Replicas& replicas, const Store& store,
                           std::int64_t step) {
  using Value = Store::SharedValue;
  using Part = Store::SharedPart;
  const std::vector<Value> values = store.shared_values();
  ReplicaComparison comparison(world, step);
  for (const bool experts : {false, true}) {
    comm::Communicator* const group = experts ? replicas.experts : replicas.sharded;
    if (group == nullptr) continue;
    comparison.compare(*group, some_of<Value>(values, [&](const Value& one) {
      return one.in_shares && one.is_expert == experts;
    }));
  }
  if (replicas.copies != nullptr) comparison.compare(*replicas.copies, values);
  const std::vector<Part> parts = store.shared_parts();
  for (const int along_tp : std::views::keys(store.digests_along_tp())) {
    const auto is_shared = [&](const auto& one) { return one.along_tp == along_tp; };
    comm::Communicator& sharers = *store.sharers(along_tp);
    comparison.compare(sharers, some_of<Value>(values, is_shared));
    // Only stores that divide have parts.
    if (parts.empty()) continue;
    comparison.compare(sharers, *replicas.sharded, some_of<Part>(parts, is_shared));
  }
  comparison.finish();
}

}  // namespace armillary::train
