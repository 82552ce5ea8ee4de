// store_shared.cpp: what a rank holds, and which other ranks hold the same.
//
// Ranks along tp that have the same range of a parameter may cut it elsewhere over the replicas:
// their ranges of the other parameters of its unit may have other sizes. So it is listed in parts
// that no share of any of them cuts:
//
//   rank 0 along tp   own share .....|.......         parts   .....|..|....
//   rank 1            ........|......
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "armillary/train/store.h"

namespace armillary::train {

proof::Digest Store::digest_of_values(const at::Tensor& values) {
  return proof::digest_of(
      std::string_view(static_cast<const char*>(values.const_data_ptr()), values.nbytes()));
}

comm::Communicator* Store::sharers(int ranks) const {
  if (replicas_.tp != nullptr && ranks == replicas_.tp->world()) return replicas_.tp;
  const auto group = shared_.find(ranks);
  return group == shared_.end() ? nullptr : group->second.get();
}

std::vector<Store::SharedValue> Store::shared_values() const {
  std::vector<SharedValue> values;
  for (const Unit& unit : units_) {
    if (unit.zero == 3) continue;
    for (const Weight* const weight : owned_by(unit)) {
      values.push_back({.name = weight->parameter.name,
                        .digest = digest_of_values(weight->value),
                        .along_tp = weight->copies,
                        .in_shares = true,
                        .is_expert = unit.has_experts});
    }
  }
  const auto name_of = [](const Weight& weight) { return weight.parameter.name; };
  for (const Piece& piece : pieces_) {
    const Unit& unit = units_[static_cast<std::size_t>(piece.unit)];
    if (!has_own_masters(unit) || (unit.zero > 0 && replicas_.copies == nullptr)) continue;
    const Weight& weight = *std::ranges::find(weights_, piece.name, name_of);
    // Shares are compared along tp in shared_parts().
    values.push_back({.name = piece.name,
                      .digest = digest_of_values(piece.value),
                      .along_tp = unit.zero == 0 ? weight.copies : 1,
                      .in_shares = unit.zero == 0,
                      .is_expert = unit.has_experts});
  }
  return values;
}

std::vector<const Store::Weight*> Store::owned_by(const Unit& unit) const {
  std::vector<const Weight*> owned;
  for (const Weight& weight : weights_) {
    if (weight.parameter.units.front() == unit.name) owned.push_back(&weight);
  }
  return owned;
}

// The ends of shares inside of a parameter, as a rank along tp has cut the unit that owns it.
void Store::add_share_ends(std::set<std::int64_t>& ends, const std::vector<const Weight*>& owned,
                           const Weight& in, int tp_index) const {
  std::vector<model::GlobalRange> ranges;
  std::int64_t count = 0;
  std::int64_t begin = 0;  // of the parameter, in the unit of that rank
  for (const Weight* const weight : owned) {
    if (weight == &in) begin = count;
    ranges.push_back(model::range_of(weight->parameter, tp_index, replicas_.tp->world()));
    count += model::count_of_values(ranges.back().size);
  }
  const std::int64_t size = model::count_of_values(in.range.size);
  std::int64_t end = -begin;
  for (const std::int64_t share : shares_of(ranges, replicas_.sharded->world())) {
    end += share;
    if (end > 0 && end < size) ends.insert(end);
  }
}

std::vector<Store::SharedPart> Store::shared_parts() const {
  std::vector<SharedPart> parts;
  for (const Unit& unit : units_) {
    if (unit.zero == 0 || !has_own_masters(unit)) continue;
    const std::vector<const Weight*> owned = owned_by(unit);
    for (const Weight* const weight : owned) {
      const std::int64_t size = model::count_of_values(weight->range.size);
      if (weight->copies == 1 || size == 0) continue;
      const int first = replicas_.tp->rank() / weight->copies * weight->copies;
      std::set<std::int64_t> ends{size};
      for (int i = first; i < first + weight->copies; ++i) {
        add_share_ends(ends, owned, *weight, i);
      }
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) {
        SharedPart part{.name = weight->parameter.name, .along_tp = weight->copies, .digest = {}};
        const std::int64_t from = weight->begin + begin - unit.begin;  // in this rank's share
        if (from >= 0 && from + end - begin <= own_count(unit)) {
          part.digest = digest_of_values(unit.own_values.narrow(0, from, end - begin));
        }
        parts.push_back(std::move(part));
        begin = end;
      }
    }
  }
  return parts;
}

std::vector<Store::HeldValue> Store::held_values() const {
  std::vector<HeldValue> values;
  for (const Piece& piece : pieces_) values.push_back({piece.name, piece.value, /*is_own=*/true});
  for (const Unit& unit : units_) {
    if (unit.zero == 3) continue;
    for (const Weight* const weight : owned_by(unit)) {
      values.push_back({weight->parameter.name, weight->value});
    }
  }
  return values;
}

}  // namespace armillary::train
