// store_sums.cpp: sums of gradients over ranks. Those over replicas are under way while a step goes
// on, at stage 0 as shares that are then gathered.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/train/store.h"
#include "armillary/train/tensor_array.h"
#include "armillary/train/wait_time.h"

namespace armillary::train {

at::Tensor Store::own_sum(const Unit& unit, const at::Tensor& all) {
  const auto mine = unit.counts.begin() + unit.replicas->rank();
  return all.narrow(0, std::accumulate(unit.counts.begin(), mine, std::int64_t{0}), *mine);
}

void Store::start_sum(int unit) {
  Unit& of = unit_at(unit);
  if (of.zero > 0) {
    finish_sums();  // The memory of two units at most is whole.
  } else if (rounds_sums()) {
    finish_gathered_sums();  // The messages of two units at most are there.
  }
  GradientSum sum{.unit = static_cast<std::size_t>(unit), .is_added = of.has_sum};
  at::Tensor all = of.gradients.all();
  if (rounds_sums()) {
    start_sign_sum(of, sum);
    all = sum.message = all.to(dtypes_.reduce);
    if (of.zero >= 2) of.gradients.drop();
  }
  at::Tensor mine = of.zero == 0 ? own_sum(of, all) : of.own_gradients;
  if (of.zero > 0 && (rounds_sums() || of.has_sum)) {
    mine = sum.sum = at::empty({own_count(of)}, dtypes_.reduce);
  }
  sum.request = comm::start_reduce_scatter(*of.replicas, array_of(all), array_of(mine),
                                           comm::Reduction::Sum, of.counts);
  of.has_sum = of.zero >= 2;
  sums_.push_back(std::move(sum));
  count_bytes();
}

void Store::start_gather_sum(int unit) {
  const Unit& of = unit_at(unit);
  const auto sum = std::ranges::find(sums_, static_cast<std::size_t>(unit), &GradientSum::unit);
  ARMILLARY_CHECK(of.zero == 0 && sum != sums_.end() && !sum->is_gathered);
  {
    const WaitTime wait(waited_s_);
    of.replicas->wait(sum->request);
    if (sum->sign_request) of.replicas->wait(sum->sign_request);
  }
  const at::Tensor all = sum->message.defined() ? sum->message : of.gradients.all();
  sum->request =
      comm::start_all_gather(*of.replicas, array_of(own_sum(of, all)), array_of(all), of.counts);
  if (sum->sign_request) {
    sum->sign_request = comm::start_all_gather(*of.replicas, array_of(sum->sign_sum),
                                               array_of(sum->signs), sum->sign_counts);
  }
  sum->is_gathered = true;
}

// One sum for all gradients that as many ranks share.
void Store::sum_along_tp(int unit, comm::Communicator& group) {
  const std::string& name = unit_at(unit).name;
  std::vector<at::Tensor> parts;
  for (const Weight& weight : weights_) {
    if (weight.copies != group.world() || weight.parameter.units.front() != name) continue;
    parts.push_back(weight.gradient.view({-1}));
  }
  const at::Tensor sum = at::cat(parts);
  {
    const WaitTime wait(waited_s_);
    comm::all_reduce(group, array_of(sum));
  }
  std::int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    part.copy_(sum.narrow(0, begin, part.numel()));
    begin += part.numel();
  }
}

// In place, in the dtype in which gradients travel.
void Store::sum_share(int unit, comm::Communicator& group) {
  if (group.world() == 1) return;
  const WaitTime wait(waited_s_);
  const Unit& of = unit_at(unit);
  const at::Tensor message = of.own_gradients.to(dtypes_.reduce);  // themselves if they are of it
  if (message.is_same(of.own_gradients)) return comm::all_reduce(group, array_of(message));
  const std::vector<at::Tensor> signs = sign_views(of, of.own_gradients, of.begin);
  const at::Tensor sign_sum = joined(signs);
  comm::all_reduce(group, array_of(message));
  if (!of.signs.empty()) comm::all_reduce(group, array_of(sign_sum));
  of.own_gradients.copy_(message);
  write_joined(sign_sum, signs);
}

std::vector<at::Tensor> Store::sign_views(const Unit& unit, const at::Tensor& values,
                                          std::int64_t begin) {
  std::vector<at::Tensor> views;
  for (const ElementRange& range : unit.signs) {
    const std::int64_t from = std::max(range.begin, begin);
    const std::int64_t to = std::min(range.end, begin + values.numel());
    if (from < to) views.push_back(values.narrow(0, from - begin, to - from));
  }
  return views;
}

at::Tensor Store::joined(const std::vector<at::Tensor>& views) {
  return views.empty() ? at::empty({0}) : at::cat(views);
}

void Store::write_joined(const at::Tensor& values, const std::vector<at::Tensor>& views) {
  std::int64_t begin = 0;
  for (const at::Tensor& view : views) {
    view.copy_(values.narrow(0, begin, view.numel()));
    begin += view.numel();
  }
}

// Counts of tokens, which bf16 would round: some numbers beside all gradients of a unit.
void Store::start_sign_sum(Unit& unit, GradientSum& sum) const {
  if (unit.signs.empty()) return;
  const at::Tensor all = unit.gradients.all();
  std::int64_t begin = 0;
  for (const std::int64_t count : unit.counts) {
    sum.sign_counts.push_back(joined(sign_views(unit, all.narrow(0, begin, count), begin)).numel());
    begin += count;
  }
  sum.signs = joined(sign_views(unit, all, 0));
  const std::int64_t own = sum.sign_counts[static_cast<std::size_t>(unit.replicas->rank())];
  sum.sign_sum = at::empty({own}, dtypes_.master);
  sum.sign_request =
      comm::start_reduce_scatter(*unit.replicas, array_of(sum.signs), array_of(sum.sign_sum),
                                 comm::Reduction::Sum, sum.sign_counts);
}

void Store::finish_sums() {
  for (GradientSum& sum : sums_) finish(sum);
  sums_.clear();
}

void Store::finish_gathered_sums() {
  for (GradientSum& sum : sums_) {
    if (sum.is_gathered) finish(sum);
  }
  std::erase_if(sums_, [](const GradientSum& sum) { return sum.is_gathered; });
}

void Store::finish(GradientSum& sum) {
  Unit& of = units_[sum.unit];
  ARMILLARY_CHECK(of.zero > 0 || sum.is_gathered);
  {
    const WaitTime wait(waited_s_);
    of.replicas->wait(sum.request);
    if (sum.sign_request) of.replicas->wait(sum.sign_request);
  }
  const std::vector<at::Tensor> signs = sign_views(of, of.own_gradients, of.begin);
  at::Tensor sign_sum = of.zero == 0 ? sum.signs : sum.sign_sum;
  if (sign_sum.defined() && sum.is_added) sign_sum = sign_sum + joined(signs);
  if (of.zero == 0) {
    if (sum.message.defined()) of.own_gradients.copy_(sum.message);
  } else if (sum.is_added) {
    of.own_gradients.add_(sum.sum);
  } else if (sum.sum.defined()) {
    of.own_gradients.copy_(sum.sum);
  }
  if (sign_sum.defined()) write_joined(sign_sum, signs);
  if (of.zero >= 2) of.gradients.drop();
}

}  // namespace armillary::train
