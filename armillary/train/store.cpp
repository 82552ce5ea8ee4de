// store.cpp: each unit has a whole buffer of values and one of gradients, of which its weights are
// views, and flat tensors of the share that this rank owns, of which its pieces are views. The
// share is a view of the whole buffer if nothing of its kind is divided or rounded. A parameter of
// several units lies in the buffers of the first.
#include "armillary/train/store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/model/initial_values.h"
#include "armillary/train/tensor_array.h"
#include "armillary/train/wait_time.h"

namespace armillary::train {
namespace {

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// Initial values, which are drawn in fp32 for every dtype.
void draw(const model::Parameter& parameter, const model::GlobalRange& range, std::int64_t seed,
          const at::Tensor& values) {
  if (values.numel() == 0) return;
  const at::Tensor drawn =
      values.scalar_type() == at::kFloat ? values : at::empty(values.sizes(), at::kFloat);
  model::draw_initial_values(
      parameter, range, seed,
      std::span(drawn.data_ptr<float>(), static_cast<std::size_t>(drawn.numel())));
  if (!drawn.is_same(values)) values.copy_(drawn);
}

/// Elements of one index of dim 0; a scalar is one row.
std::int64_t row_of(const model::Shape& shape) {
  return shape.empty() ? 1 : model::count_of_values(shape) / std::max<std::int64_t>(shape[0], 1);
}

/// The rank in a group along tp or ep, and their number.
int index_in(const comm::Communicator* group) {
  return group == nullptr ? 0 : group->rank();
}
int ranks_of(const comm::Communicator* group) {
  return group == nullptr ? 1 : group->world();
}
bool has_others(const comm::Communicator* group) {
  return ranks_of(group) > 1;
}
int tp_index(const Replicas& replicas) {
  return index_in(replicas.tp);
}
int tp_ranks(const Replicas& replicas) {
  return ranks_of(replicas.tp);
}

/// The rows of a range that lie in elements [begin, end) of it; both are at ends of rows.
model::GlobalRange rows_in(model::GlobalRange range, std::int64_t begin, std::int64_t end) {
  if (range.size.empty()) return range;
  const std::int64_t row = row_of(range.size);
  range.begin[0] += begin / row;
  range.size[0] = (end - begin) / row;
  return range;
}

}  // namespace

std::vector<std::int64_t> shares_of(std::span<const model::GlobalRange> parameters, int ranks) {
  std::int64_t total = 0;
  for (const model::GlobalRange& range : parameters) total += model::count_of_values(range.size);
  std::vector<std::int64_t> cuts{0};
  std::size_t i = 0;       // the parameter in which the cut lies
  std::int64_t begin = 0;  // its first element
  for (int rank = 1; rank < ranks; ++rank) {
    // In two parts, so that no product of a count and ranks is formed.
    const std::int64_t ideal = total / ranks * rank + total % ranks * rank / ranks;
    while (i < parameters.size() && begin + model::count_of_values(parameters[i].size) <= ideal) {
      begin += model::count_of_values(parameters[i++].size);
    }
    const std::int64_t row = i < parameters.size() ? row_of(parameters[i].size) : 1;
    cuts.push_back(begin + (ideal - begin + row / 2) / row * row);
  }
  cuts.push_back(total);
  std::vector<std::int64_t> counts;
  for (std::size_t r = 1; r < cuts.size(); ++r) counts.push_back(cuts[r] - cuts[r - 1]);
  return counts;
}

Store::Store(const model::Model& model, std::int64_t seed, const Replicas& replicas,
             const Dtypes& dtypes, const StatePlace& place)
    : replicas_(replicas),
      zero_(has_others(replicas.sharded) || has_others(replicas.experts) ? replicas.zero : 0),
      dtypes_(dtypes),
      place_(place) {
  if (replicas.zero < 0 || replicas.zero > 3) {
    fail<InvalidArgument>("store: ZeRO stage {} given; one from 0 to 3 is required", replicas.zero);
  }
  const std::vector<std::string> names = model.units();
  const std::vector<model::Parameter> parameters = model.parameters();
  model::check_parameters(parameters, names, tp_ranks(replicas));
  for (const std::string& name : names) add_unit(name, parameters);
  // A parameter may be of several units.
  std::vector<std::size_t> owner_of_weight;
  for (const Weight& weight : weights_) {
    const std::string& owner = weight.parameter.units.front();
    owner_of_weight.push_back(
        static_cast<std::size_t>(std::ranges::find(names, owner) - names.begin()));
  }
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    for (Unit& unit : units_) {
      if (std::ranges::count(weights_[i].parameter.units, unit.name) == 0) continue;
      unit.used.push_back(i);
      if (std::ranges::count(unit.owners, owner_of_weight[i]) == 0) {
        unit.owners.push_back(owner_of_weight[i]);
      }
    }
  }
  // Groups are split in the same order on all ranks along tp.
  for (const Weight& weight : weights_) {
    const int copies = weight.copies;
    if (copies == 1 || copies == tp_ranks(replicas_) || shared_.contains(copies)) continue;
    shared_[copies] = replicas_.tp->split(replicas_.tp->rank() / copies, replicas_.tp->rank());
  }
  std::size_t next = 0;
  fill([&](const std::string&, const model::GlobalRange& range, const at::Tensor& values) {
    draw(weights_[next++].parameter, range, seed, values);
  });
  zero_gradients();
  if (place_.on_host) lane_ = std::make_unique<HostLane>(place_.timeout_s);
}

std::vector<model::Parameter> Store::parameters() const {
  std::vector<model::Parameter> all;
  for (const Weight& weight : weights_) all.push_back(weight.parameter);
  return all;
}

// The parameters that a unit owns, and their memory. One owner: a tied parameter has one value and
// is updated once.
void Store::add_unit(const std::string& name, const std::vector<model::Parameter>& parameters) {
  const std::size_t first_weight = weights_.size();
  std::int64_t count = 0;
  std::vector<model::GlobalRange> ranges;
  std::vector<ElementRange> signs;
  for (const model::Parameter& parameter : parameters) {
    if (parameter.units.front() != name) continue;
    ranges.push_back(range_here(parameter));
    weights_.push_back({.parameter = parameter,
                        .range = ranges.back(),
                        .copies = model::copies_along_tp(parameter, tp_ranks(replicas_)),
                        .begin = count});
    count += model::count_of_values(ranges.back().size);
    if (parameter.sign_rate > 0) signs.push_back({weights_.back().begin, count});
  }
  const bool has_experts =
      weights_.size() > first_weight && weights_[first_weight].parameter.is_expert;
  comm::Communicator* const group = has_experts ? replicas_.experts : replicas_.sharded;
  Unit unit{.name = name,
            .has_experts = has_experts,
            .replicas = group,
            .zero = has_others(group) ? zero_ : 0,
            .used = {},
            .owners = {},
            .counts = {count},
            .signs = std::move(signs),
            .values = FlatBuffer(count, dtypes_.param),
            .gradients = FlatBuffer(count, dtypes_.master)};
  if (has_others(group)) unit.counts = shares_of(ranges, group->world());
  if (unit.zero > 0) {
    const auto mine = unit.counts.begin() + group->rank();
    unit.begin = std::accumulate(unit.counts.begin(), mine, std::int64_t{0});
  }
  for (std::size_t i = first_weight; i < weights_.size(); ++i) {
    Weight& weight = weights_[i];
    weight.value = unit.values.view(weight.begin, weight.range.size);
    weight.gradient = unit.gradients.view(weight.begin, weight.range.size);
    weight.value.set_requires_grad(true);
    // Backward adds to a gradient that is there, so gradients stay in the flat buffer.
    weight.value.set_grad_dtype(dtypes_.master);
    weight.value.mutable_grad() = weight.gradient;
  }
  const std::int64_t own = own_count(unit);
  if (place_.on_host) {
    unit.state = at::zeros({(masters_in_state(unit) ? 3 : 2) * own}, dtypes_.master);
  }
  const auto state = [&](std::int64_t i) {
    return place_.on_host ? unit.state.narrow(0, i * own, own) : at::zeros({own}, dtypes_.master);
  };
  unit.means = state(0);
  unit.squares = state(1);
  unit.own_values = masters_in_state(unit)  ? state(2)
                    : has_own_masters(unit) ? at::empty({own}, dtypes_.master)
                                            : unit.values.view(unit.begin, {own});
  unit.own_gradients =
      unit.zero < 2 ? unit.gradients.view(unit.begin, {own}) : at::zeros({own}, dtypes_.master);
  add_pieces(unit, first_weight);
  if (unit.zero == 3) unit.values.drop();
  if (unit.zero >= 2) unit.gradients.drop();
  units_.push_back(std::move(unit));
}

// The part of each of the unit's weights that this rank owns.
void Store::add_pieces(const Unit& unit, std::size_t first_weight) {
  const std::int64_t end = unit.begin + own_count(unit);
  for (std::size_t i = first_weight; i < weights_.size(); ++i) {
    const Weight& weight = weights_[i];
    const std::int64_t count = model::count_of_values(weight.range.size);
    const std::int64_t from = std::max(unit.begin, weight.begin);
    const std::int64_t to = std::min(end, weight.begin + count);
    if (from >= to) continue;
    const model::GlobalRange range = rows_in(weight.range, from - weight.begin, to - weight.begin);
    const auto view = [&](const at::Tensor& own) {
      return own.narrow(0, from - unit.begin, to - from).view(range.size);
    };
    pieces_.push_back({.name = weight.parameter.name,
                       .range = range,
                       .value = view(unit.own_values),
                       .gradient = view(unit.own_gradients),
                       .mean = view(unit.means),
                       .square = view(unit.squares),
                       .is_copy = tp_index(replicas_) % weight.copies != 0,
                       .unit = units(),
                       .is_expert = unit.has_experts,
                       .sign_rate = weight.parameter.sign_rate});
  }
}

Store::Unit& Store::unit_at(int unit) {
  if (unit < 0 || unit >= units()) {
    fail<InvalidArgument>("store: unit {} given; one of the {} that are declared is required", unit,
                          units());
  }
  return units_[static_cast<std::size_t>(unit)];
}

std::int64_t Store::own_count(const Unit& unit) const {
  if (unit.zero == 0) return unit.values.count();
  return unit.counts[static_cast<std::size_t>(unit.replicas->rank())];
}

model::GlobalRange Store::range_here(const model::Parameter& parameter) const {
  if (parameter.is_expert) {
    return model::expert_range_of(parameter, index_in(replicas_.ep), ranks_of(replicas_.ep));
  }
  return model::range_of(parameter, tp_index(replicas_), tp_ranks(replicas_));
}

void Store::fill(const Fill& fill) {
  std::string digests;
  std::string expert_digests;
  std::map<int, std::string> along_tp;
  for (Unit& unit : units_) {
    // The whole unit on every rank, which keeps its own share.
    const at::Tensor whole = has_own_masters(unit)
                                 ? at::empty({unit.values.count()}, dtypes_.master)
                                 : unit.values.all();
    for (const Weight& weight : weights_) {
      if (weight.parameter.units.front() != unit.name) continue;
      const at::Tensor values =
          whole.narrow(0, weight.begin, model::count_of_values(weight.range.size));
      fill(weight.parameter.name, weight.range, values);
      const std::string digest = weight.parameter.name + ' ' + to_string(digest_of_values(values));
      (unit.has_experts ? expert_digests : digests) += digest;
      if (weight.copies > 1) along_tp[weight.copies] += digest;
    }
    if (!has_own_masters(unit)) continue;
    unit.own_values.copy_(whole.narrow(0, unit.begin, own_count(unit)));
    if (unit.zero < 3) unit.values.all().copy_(whole);
  }
  digest_ = proof::digest_of(digests);
  expert_digest_ = proof::digest_of(expert_digests);
  for (const auto& [ranks, text] : along_tp) digests_along_tp_[ranks] = proof::digest_of(text);
}

// This rank's values at their place in the unit, where those of a buffer may be already.
at::Tensor Store::place_own_values(Unit& unit) const {
  at::Tensor place = unit.values.all().narrow(0, unit.begin, own_count(unit));
  const bool is_placed = std::exchange(unit.is_placed, false);
  if (has_own_masters(unit) && !is_placed) place.copy_(unit.own_values);
  return place;
}

void Store::start_gather(Unit& unit) {
  unit.gather = comm::start_all_gather(*unit.replicas, array_of(place_own_values(unit)),
                                       array_of(unit.values.all()), unit.counts);
}

void Store::gather(int unit) {
  Unit& of = unit_at(unit);
  if (of.zero < 3 || of.values.has_memory()) return;
  of.values.take();
  count_bytes();
  start_gather(of);
}

void Store::drop_values(int unit) {
  Unit& of = unit_at(unit);
  wait_for_gather(of);
  of.values.drop();
}

void Store::wait_for_gather(Unit& unit) {
  if (!unit.gather) return;
  const WaitTime wait(waited_s_);
  unit.replicas->wait(unit.gather);
  unit.gather = {};
}

void Store::prefetch(int unit) {
  for (const std::size_t owner : unit_at(unit).owners) gather(static_cast<int>(owner));
}

model::Weights Store::use(int unit) {
  prefetch(unit);
  const Unit& of = unit_at(unit);
  for (const std::size_t owner : of.owners) wait_for_gather(units_[owner]);
  return weights_of(of);
}

model::Weights Store::blank(int unit) {
  const Unit& of = unit_at(unit);
  for (const std::size_t owner : of.owners) units_[owner].values.take();
  return weights_of(of);
}

model::Weights Store::weights_of(const Unit& of) const {
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (const std::size_t i : of.used) {
    names.push_back(weights_[i].parameter.name);
    values.push_back(weights_[i].value);
  }
  return {of.name, std::move(names), std::move(values)};
}

void Store::release(int unit) {
  for (const std::size_t owner : unit_at(unit).owners) {
    if (units_[owner].zero < 3) continue;
    wait_for_gather(units_[owner]);
    units_[owner].values.drop();
  }
}

void Store::zero_gradients() {
  for (Unit& unit : units_) {
    unit.has_sum = false;
    if (unit.zero < 2) {
      unit.gradients.clear();  // own_gradients are a view of them
    } else {
      unit.own_gradients.zero_();
    }
  }
}

void Store::begin_backward(int unit) {
  for (const std::size_t owner : unit_at(unit).owners) {
    if (units_[owner].zero < 2) continue;
    // The sum of the sequence before may still be under way.
    if (std::ranges::count(sums_, owner, &GradientSum::unit) > 0) finish_sums();
    FlatBuffer& gradients = units_[owner].gradients;
    if (gradients.has_memory()) continue;
    gradients.take();
    gradients.clear();
  }
  count_bytes();
}

std::int64_t Store::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const Unit& unit : units_) bytes += unit.gradients.count() * size_of(dtypes_.reduce);
  return bytes;
}

std::string Store::not_finite(int unit) const {
  for (const std::size_t i : units_.at(static_cast<std::size_t>(unit)).used) {
    if (!weights_[i].gradient.isfinite().all().item<bool>()) return weights_[i].parameter.name;
  }
  return "";
}

void Store::gather_values() {
  for (int unit = 0; unit < units(); ++unit) {
    if (unit_at(unit).zero < 3) start_gather_values(unit);  // else gathered when they are used
  }
  finish_gathers();
}

void Store::start_gather_values(int unit) {
  Unit& of = unit_at(unit);
  if (of.zero == 0) {
    place_own_values(of);
  } else {
    start_gather(of);
  }
}

void Store::finish_gathers() {
  for (Unit& unit : units_) wait_for_gather(unit);
}

std::int64_t Store::bytes_at_rest() const {
  const std::int64_t master = size_of(dtypes_.master);
  std::int64_t bytes = 0;
  for (const Unit& unit : units_) {
    const std::int64_t own = own_count(unit) * master;
    bytes += unit.zero < 3 ? unit.values.bytes() : own;
    bytes += unit.zero < 2 ? unit.gradients.bytes() : own;
    if (!place_.on_host) bytes += state_bytes(unit);
  }
  return bytes;
}

void Store::count_bytes() {
  std::int64_t bytes = bytes_at_rest() + staged_bytes_;
  for (const Unit& unit : units_) {
    if (unit.zero == 3 && unit.values.has_memory()) bytes += unit.values.bytes();
    if (unit.zero >= 2 && unit.gradients.has_memory()) bytes += unit.gradients.bytes();
  }
  for (const GradientSum& sum : sums_) {
    for (const at::Tensor& beside : {sum.message, sum.sum, sum.signs, sum.sign_sum}) {
      if (beside.defined()) bytes += static_cast<std::int64_t>(beside.nbytes());
    }
  }
  peak_bytes_ = std::max(peak_bytes_, bytes);
}

void Store::check_views() const {
  for (const Weight& weight : weights_) {
    const at::Tensor& grad = weight.value.grad();
    if (grad.defined() && grad.is_alias_of(weight.gradient) &&
        grad.storage_offset() == weight.gradient.storage_offset()) {
      continue;
    }
    fail<InvalidArgument>(
        "train: the gradient of parameter {} left the store's memory; a model must not replace or "
        "clear .grad",
        quote(weight.parameter.name));
  }
}

}  // namespace armillary::train
