#include "armillary/train/expert_parallel_over_ranks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/train/tensor_array.h"

namespace armillary::train {
namespace {

class ExchangeOverRanks : public model::ExpertExchange {
 public:
  ExchangeOverRanks(comm::Communicator& ranks, comm::Request request)
      : ranks_(ranks), request_(std::move(request)) {}
  void wait() override { ranks_.wait(request_); }

 private:
  comm::Communicator& ranks_;
  comm::Request request_;
};

class ExpertParallelOverRanks : public model::ExpertParallel {
 public:
  explicit ExpertParallelOverRanks(const ExpertGroups& groups)
      : ExpertParallel(groups.ep == nullptr ? 0 : groups.ep->rank(),
                       groups.ep == nullptr ? 1 : groups.ep->world()),
        groups_(groups) {}

  std::vector<std::int64_t> exchange_counts(std::span<const std::int64_t> counts,
                                            std::span<const std::int64_t> of_ranks) override {
    const std::int64_t mine = of_ranks[static_cast<std::size_t>(index())];
    const std::vector<std::int64_t> incoming(of_ranks.size(), mine);
    std::vector<std::int64_t> received(static_cast<std::size_t>(mine * ranks()));
    groups_.ep->wait(comm::start_all_to_all(*groups_.ep, comm::array(counts),
                                            comm::array(std::span(received)),
                                            {.outgoing = of_ranks, .incoming = incoming}));
    return received;
  }

  std::unique_ptr<model::ExpertExchange> start_all_to_all(
      const at::Tensor& outgoing, std::span<const std::int64_t> outgoing_counts,
      const at::Tensor& incoming, std::span<const std::int64_t> incoming_counts) override {
    return std::make_unique<ExchangeOverRanks>(
        *groups_.ep,
        comm::start_all_to_all(*groups_.ep, array_of(outgoing), array_of(incoming),
                               {.outgoing = outgoing_counts, .incoming = incoming_counts}));
  }

  void sum(const at::Tensor& values, model::BalanceGroup group) override {
    const bool by_sequence = group == model::BalanceGroup::Sequence;
    comm::all_reduce(by_sequence ? *groups_.sequence : *groups_.batch, array_of(values),
                     comm::Reduction::Sum);
  }

 private:
  const ExpertGroups groups_;
};

}  // namespace

std::shared_ptr<model::ExpertParallel> expert_parallel_over_ranks(const ExpertGroups& groups) {
  return std::make_shared<ExpertParallelOverRanks>(groups);
}

bool has_experts(const model::Model& model) {
  return std::ranges::any_of(model.parameters(), &model::Parameter::is_expert);
}

std::shared_ptr<model::ExpertParallel> expert_parallel_of(const model::Model& model,
                                                          const comm::Mesh& mesh,
                                                          const Replicas& replicas) {
  if (!has_experts(model)) return nullptr;
  return expert_parallel_over_ranks(
      {replicas.ep, &mesh.over({MeshAxis::Cp, MeshAxis::Tp}), &mesh.world()});
}

}  // namespace armillary::train
