// step_overlap_rate.cpp: a step is the trainer's runner on the trainer's store, with a communicator
// that can be still. Sequence r is that of rank r, or pass r of the one rank.
#include "armillary/lab/bench/step_overlap_rate.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/error.h"
#include "armillary/lab/bench/still_communicator.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/step_runner.h"
#include "armillary/train/step_shape.h"

namespace armillary::bench {
namespace {

/// Largest relative difference from one rank: sums in another order.
constexpr double kLossBound = 1e-5;
constexpr double kNormBound = 1e-3;

train::Recipe recipe_of(const StepOverlapCase& spec, int ranks) {
  train::Recipe recipe;
  recipe.model.name = "llama";
  recipe.model.dim = spec.dim;
  recipe.model.n_layers = spec.layers;
  recipe.model.n_heads = spec.heads;
  recipe.training.seq_len = spec.tokens;
  recipe.training.global_batch_size = spec.world;
  recipe.training.local_batch_size = 1;
  recipe.parallelism.data_parallel_shard_degree = ranks;
  recipe.parallelism.zero = ranks == 1 ? 0 : spec.zero;
  return recipe;
}

model::ModelInputs inputs_of(comm::Communicator& alone, std::int64_t tokens, std::int64_t vocab,
                             std::int64_t sequence) {
  std::vector<std::int64_t> words;
  for (std::int64_t i = 0; i <= tokens; ++i) {
    words.push_back((i * 31 + i * i * 7 + sequence * (i + 3)) % vocab);
  }
  const at::Tensor all = at::tensor(words, at::kLong).unsqueeze(0);
  return {.batch = {{model::kTokens, all.narrow(1, 0, tokens)},
                    {model::kLabels, all.narrow(1, 1, tokens)}},
          .positions_L = at::arange(tokens, at::kLong),
          .attends =
              train::attend_over_ranks(alone, {.mask = plan::parse_mask("causal", {tokens, tokens}),
                                               .layout = plan::parse_layout("contiguous")})};
}

void expect_near(const char* name, double value, double required, double bound) {
  if (std::abs(value - required) <= bound * std::abs(required)) return;
  fail<Error>("bench: {} {} of the ranks; {}, that of one rank, within {} of it is required", name,
              value, required, bound);
}

}  // namespace

/// All of a rank that a step needs.
class StepOverlapRate::StepRank {
 public:
  /// The communicator must outlive all calls. Collective.
  StepRank(comm::Communicator& comm, const StepOverlapCase& spec, MessageMode mode)
      : mode_(mode),
        targets_(static_cast<double>(spec.tokens * spec.world)),
        recipe_(recipe_of(spec, comm.world())),
        comm_(comm),
        mesh_(comm_, {.dp = comm.world()}),
        model_(train::make_model(recipe_)),
        groups_(mesh_, recipe_.parallelism),
        store_(*model_, recipe_.training.seed, groups_.replicas()),
        optimizer_(store_.pieces(), recipe_.optimizer),
        recording_(comm_, ""),
        step_(train::proved_step(
            comm_,
            train::step_shape_of(*model_, mesh_.shape(), recipe_.parallelism, recipe_.training))) {
    for (int pass = 0; pass < spec.world / comm.world(); ++pass) {
      inputs_.push_back(inputs_of(mesh_.along(MeshAxis::Cp), spec.tokens, recipe_.model.vocab_size,
                                  comm.rank() + pass));
    }
    store_.gather_values();
  }

  /// Takes a step. Collective.
  void run() {
    train::StepRunner runner(
        {*model_, store_, optimizer_, comm_, recording_}, step_,
        {.inputs = [this](int pass) { return inputs_[static_cast<std::size_t>(pass)]; },
         .targets = targets_,
         .lr = 0});
    comm_.set_mode(mode_);
    loss_ = runner.run_gradients();
    comm_.set_mode(MessageMode::Move);
    runner.run_norm();
    grad_norm_ = optimizer_.clip(std::numeric_limits<double>::infinity());
    comm_.set_mode(mode_);
    runner.run_update();
    comm_.set_mode(MessageMode::Move);
  }

  /// Loss and norm of the last step. Collective.
  StepOverlapFacts result() {
    double loss = loss_;
    comm::all_reduce_sum(comm_, std::span(&loss, 1));
    return {.loss = loss, .grad_norm = grad_norm_, .values = step_values(step_)};
  }
  const train::ProvedStep& step() const { return step_; }

 private:
  const MessageMode mode_;
  const double targets_;
  const train::Recipe recipe_;
  StillCommunicator comm_;
  comm::Mesh mesh_;
  std::unique_ptr<model::Model> model_;
  train::ReplicaGroups groups_;
  train::Store store_;
  train::Optimizer optimizer_;
  train::Recording recording_;
  train::ProvedStep step_;
  std::vector<model::ModelInputs> inputs_;  ///< By pass.
  double loss_ = 0;
  double grad_norm_ = 0;
};

StepOverlapRate::StepOverlapRate(const StepOverlapCase& spec, const MakeRanks& make_ranks) {
  if (spec.world < 2) {
    fail<InvalidArgument>("bench: a step on world {}; at least 2 is required", spec.world);
  }
  if (spec.zero < 1 || spec.zero > 3) {
    fail<InvalidArgument>("bench: a step of ZeRO stage {}; 1, 2 or 3 is required; nearest: {}",
                          spec.zero, spec.zero < 1 ? 1 : 3);
  }
  // Phase 1 of 2: one rank.
  StepOverlapFacts one;
  const std::unique_ptr<Ranks> alone = make_ranks(1, 0);
  alone->run([&](comm::Communicator& comm) {
    StepRank rank(comm, spec, MessageMode::Move);
    rank.run();
    one = rank.result();
  });
  // Phase 2 of 2: all ranks.
  const auto world = static_cast<std::size_t>(spec.world);
  whole_.resize(world);
  paced_.resize(world);
  compute_.resize(world);
  messages_.resize(world);
  if (spec.link_bytes_per_s > 0) {
    links_ = std::make_unique<Links>(spec.world, spec.link_bytes_per_s);
    linked_.resize(world);
  }
  ranks_ = make_ranks(spec.world, 0);
  ranks_->run([&](comm::Communicator& of_rank) {
    const auto rank = static_cast<std::size_t>(of_rank.rank());
    if (links_) linked_[rank] = std::make_unique<LinkCommunicator>(of_rank, *links_);
    comm::Communicator& comm = linked(of_rank);
    whole_[rank] = std::make_unique<StepRank>(comm, spec, MessageMode::Move);
    paced_[rank] = std::make_unique<StepRank>(comm, spec, MessageMode::Pace);
    compute_[rank] = std::make_unique<StepRank>(comm, spec, MessageMode::Rest);
    messages_[rank] =
        std::make_unique<StepMessages>(whole_[rank]->step(), comm.rank(), comm.world());
    whole_[rank]->run();
    paced_[rank]->run();
    compute_[rank]->run();
    messages_[rank]->run(comm);
    const StepOverlapFacts result = whole_[rank]->result();
    if (rank == 0) facts_ = result;
  });
  if (!ranks_->runs(0)) return;
  expect_near("loss", facts_.loss, one.loss, kLossBound);
  expect_near("grad_norm", facts_.grad_norm, one.grad_norm, kNormBound);
}

StepOverlapRate::~StepOverlapRate() = default;

comm::Communicator& StepOverlapRate::linked(comm::Communicator& comm) {
  return links_ ? *linked_[static_cast<std::size_t>(comm.rank())] : comm;
}

std::vector<Side> StepOverlapRate::sides() {
  const auto side = [this](const char* name, Ranks::Work work) {
    return Side{name, [this, work = std::move(work)] { return ranks_->run(work); },
                /*on_all_ranks=*/true};
  };
  const auto rank_of = [](comm::Communicator& comm) {
    return static_cast<std::size_t>(comm.rank());
  };
  return {
      side("step", [=, this](comm::Communicator& comm) { whole_[rank_of(comm)]->run(); }),
      side("step pace", [=, this](comm::Communicator& comm) { paced_[rank_of(comm)]->run(); }),
      side("step compute", [=, this](comm::Communicator& comm) { compute_[rank_of(comm)]->run(); }),
      side("step messages",
           [=, this](comm::Communicator& comm) { messages_[rank_of(comm)]->run(linked(comm)); })};
}

}  // namespace armillary::bench
