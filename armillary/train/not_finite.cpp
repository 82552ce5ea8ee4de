// not_finite.cpp: looks at values, activations and gradients; a model gets its functions with a
// look in front of each, before a collective spreads what is not finite.
#include "armillary/train/not_finite.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"

namespace armillary::train {
namespace {

bool all_finite(const at::Tensor& x) {
  return x.isfinite().all().item<bool>();
}

class WatchedTensorParallel : public model::TensorParallel {
 public:
  WatchedTensorParallel(std::shared_ptr<model::TensorParallel> tp, FiniteWatch& watch)
      : TensorParallel(tp->index(), tp->ranks()), tp_(std::move(tp)), watch_(watch) {}

  void all_gather(const at::Tensor& mine, const at::Tensor& all,
                  std::span<const std::int64_t> counts) override {
    watch_.see(mine);
    tp_->all_gather(mine, all, counts);
  }
  void reduce_scatter(const at::Tensor& all, const at::Tensor& mine,
                      std::span<const std::int64_t> counts) override {
    watch_.see(all);
    tp_->reduce_scatter(all, mine, counts);
  }
  void all_reduce_sum(const at::Tensor& values) override {
    watch_.see(values);
    tp_->all_reduce_sum(values);
  }
  void all_reduce_max(const at::Tensor& values) override {
    watch_.see_largest(values);
    tp_->all_reduce_max(values);
  }

 private:
  std::shared_ptr<model::TensorParallel> tp_;
  FiniteWatch& watch_;
};

/// Counts are whole numbers, and sums are of counts: rows alone are looked at.
class WatchedExpertParallel : public model::ExpertParallel {
 public:
  WatchedExpertParallel(std::shared_ptr<model::ExpertParallel> ranks, FiniteWatch& watch)
      : ExpertParallel(ranks->index(), ranks->ranks()), ranks_(std::move(ranks)), watch_(watch) {}

  std::vector<std::int64_t> exchange_counts(std::span<const std::int64_t> counts,
                                            std::span<const std::int64_t> of_ranks) override {
    return ranks_->exchange_counts(counts, of_ranks);
  }
  std::unique_ptr<model::ExpertExchange> start_all_to_all(
      const at::Tensor& outgoing, std::span<const std::int64_t> outgoing_counts,
      const at::Tensor& incoming, std::span<const std::int64_t> incoming_counts) override {
    watch_.see(outgoing);
    return ranks_->start_all_to_all(outgoing, outgoing_counts, incoming, incoming_counts);
  }
  void sum(const at::Tensor& values, model::BalanceGroup group) override {
    ranks_->sum(values, group);
  }

 private:
  std::shared_ptr<model::ExpertParallel> ranks_;
  FiniteWatch& watch_;
};

template <class Output>
model::AttentionFunction<Output> watched_attention(
    const model::AttentionFunction<Output>& attention, FiniteWatch& watch) {
  using InProgress = typename model::AttentionFunction<Output>::InProgress;
  return [attention, &watch](const model::QkvShape& shape) {
    const InProgress call = attention.begin(shape);
    return InProgress{
        .take_k =
            [take = call.take_k, &watch](const at::Tensor& k_BLGD) {
              watch.see(k_BLGD);
              take(k_BLGD);
            },
        .take_v =
            [take = call.take_v, &watch](const at::Tensor& v_BLGD) {
              watch.see(v_BLGD);
              take(v_BLGD);
            },
        .finish =
            [finish = call.finish, &watch](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                           const at::Tensor& v_BLGD) {
              watch.see(q_BLHD);
              return finish(q_BLHD, k_BLGD, v_BLGD);
            }};
  };
}

}  // namespace

FirstNotFinite first_of(comm::Communicator& world, const NotFinite& mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.world()));
  comm::all_gather(world, std::as_bytes(std::span(&mine.place, 1)),
                   std::as_writable_bytes(std::span(all)));
  const auto first = std::ranges::min_element(all);
  if (*first == NotFinite::kNone) return {};
  const auto rank = static_cast<int>(first - all.begin());
  return {rank, {*first, comm::text_of_rank(world, rank, mine.what)}};
}

NotFinite value_not_finite(const Store& store) {
  NotFinite first;
  for (const Store::HeldValue& entry : store.held_values()) {
    if (all_finite(entry.value)) continue;
    const bool is_nan = entry.value.isnan().any().item<bool>();
    const std::int64_t place = (is_nan ? 0 : kInfPlace) + (entry.is_own ? 0 : 1);
    if (place < first.place) first = {place, "the value of parameter " + entry.name};
  }
  return first;
}

model::ModelInputs FiniteWatch::watched(model::ModelInputs inputs) {
  const model::Attends& attends = inputs.attends;
  inputs.attends = {watched_attention(attends.attend, *this),
                    attends.keep ? watched_attention(attends.keep, *this) : model::AttendAndKeep()};
  if (inputs.tensor_parallel) {
    inputs.tensor_parallel = std::make_shared<WatchedTensorParallel>(inputs.tensor_parallel, *this);
  }
  if (inputs.expert_parallel) {
    inputs.expert_parallel = std::make_shared<WatchedExpertParallel>(inputs.expert_parallel, *this);
  }
  return inputs;
}

void FiniteWatch::begin_forward(int unit) {
  unit_ = unit;
}

void FiniteWatch::end_forward(const at::Tensor& out) {
  if (unit_ + 1 < static_cast<int>(units_.size())) see(out);
  unit_ = -1;
}

void FiniteWatch::see_gradients(const std::string& parameter) {
  look(parameter.empty(), "the gradient of parameter " + parameter);
}

void FiniteWatch::see_loss(double loss) {
  look(std::isfinite(loss), "its loss");
}

void FiniteWatch::see(const at::Tensor& activation) {
  if (unit_ >= 0) look_at_activation(all_finite(activation));
}

void FiniteWatch::see_largest(const at::Tensor& values) {
  if (unit_ >= 0) look_at_activation(values.lt(INFINITY).all().item<bool>());
}

void FiniteWatch::look_at_activation(bool is_finite) {
  look(is_finite, "an activation of unit " + units_.at(static_cast<std::size_t>(unit_)));
}

void FiniteWatch::look(bool is_finite, const std::string& what) {
  ++looks_;
  if (!is_finite && first_.place == NotFinite::kNone) first_ = {looks_, what};
}

}  // namespace armillary::train
