#include "armillary/train/check_replicas.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

void expect_equal(comm::Communicator& comm, const std::vector<Store::SharedValue>& values,
                  std::int64_t step) {
  std::vector<proof::Digest> mine;
  for (const Store::SharedValue& value : values) mine.push_back(value.digest);
  std::vector<proof::Digest> all(mine.size() * static_cast<std::size_t>(comm.world()));
  comm::all_gather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t of = i % mine.size();
    if (all[i] == all[of]) continue;
    comm::meet(comm);
    fail<InvalidArgument>(
        "train: parameter {} of rank {} differs from that of rank 0 after step {}; equal ones are "
        "required: memory or a model changed it on one rank; nearest: --resume from a checkpoint",
        values[of].name, i / mine.size(), step);
  }
}

}  // namespace

void expect_equal_replicas(const Replicas& replicas, const Store& store, std::int64_t step) {
  const std::vector<Store::SharedValue> values = store.shared_values();
  const auto those = [&](bool Store::SharedValue::*kind) {
    std::vector<Store::SharedValue> some;
    std::ranges::copy_if(values, std::back_inserter(some), kind);
    return some;
  };
  if (store.zero() < 3 && replicas.sharded != nullptr) {
    expect_equal(*replicas.sharded, those(&Store::SharedValue::in_shares), step);
  }
  if (replicas.copies != nullptr) expect_equal(*replicas.copies, values, step);
  if (replicas.tp == nullptr || replicas.tp->world() == 1 || store.zero() == 3) return;
  expect_equal(*replicas.tp, those(&Store::SharedValue::along_tp), step);
}

}  // namespace armillary::train
