// One rank's model and parameters, of a checkpoint, a model folder or a seed, and the launcher of
// ranks as threads. The loss itself is in forward_loss.h.
#include "armillary/train/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/check_replicas.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/expert_parallel_over_ranks.h"
#include "armillary/train/mesh.h"
#include "armillary/train/recipe.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/same_recipe.h"
#include "armillary/train/store.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary::train {
namespace {

/// Refuses what ranks must not differ in.
void expect_same_evaluation(comm::Communicator& world, const Data& data, const Recipe& recipe,
                            const EvalOptions& options) {
  std::vector<std::string> lines = settings(recipe);
  lines.push_back("parameters of " + options.checkpoint + options.init_from);
  lines.push_back(fmt::format("--sequences = {}", options.sequences));
  lines.push_back(fmt::format("sequences of the data = {}", data.sequences_per_epoch()));
  for (const std::string& line : data.identity()) lines.push_back("data with " + line);
  expect_same_settings(world, std::move(lines));
}

/// One rank's model and parameters.
class RankEvaluator {
 public:
  RankEvaluator(const comm::Mesh& mesh, model::Model& model, const Data& data, const Recipe& recipe)
      : mesh_(mesh),
        world_(mesh.world()),
        model_(model),
        data_(data),
        recipe_(recipe),
        attention_(heads_along_tp(model.cost().attention, mesh.index(MeshAxis::Tp),
                                  mesh.size(MeshAxis::Tp))),
        strategy_(
            to_string(chosen_strategy(recipe, attention_, mesh.along(MeshAxis::Cp)).strategy)),
        groups_(mesh, recipe.parallelism, has_experts(model)),
        tensor_parallel_(groups_.replicas().tp == nullptr
                             ? nullptr
                             : tensor_parallel_over_ranks(*groups_.replicas().tp)),
        expert_parallel_(expert_parallel_of(model, mesh, groups_.replicas())),
        store_(model, recipe.training.seed, groups_.replicas(), dtypes_of(recipe.training)) {}

  void load(const EvalOptions& options) {
    comm::run_together(world_, [&] {
      if (!options.checkpoint.empty()) load_checkpoint(options.checkpoint);
      if (!options.init_from.empty()) load_parameters(options.init_from, recipe_.model, store_);
    });
    expect_equal_start(mesh_, store_);
    store_.gather_values();
  }

  EvalResult run(std::int64_t sequences) {
    return forward_loss({.mesh = mesh_,
                         .model = model_,
                         .store = store_,
                         .recipe = recipe_,
                         .attention = attention_,
                         .strategy = strategy_,
                         .tensor_parallel = tensor_parallel_,
                         .expert_parallel = expert_parallel_},
                        data_, sequences);
  }

 private:
  /// Each rank checks its share of the file, and reads its ranges.
  void load_checkpoint(const std::string& path) {
    const Checkpoint checkpoint(path);
    checkpoint.verify(world_.rank(), world_.world());
    store_.fill(
        [&](const std::string& name, const model::GlobalRange& range, const at::Tensor& values) {
          const io::TensorDtype dtype =
              values.scalar_type() == at::kDouble ? io::TensorDtype::F64 : io::TensorDtype::F32;
          checkpoint.read("parameters/" + name, dtype, range,
                          {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
        });
  }

  const comm::Mesh& mesh_;
  comm::Communicator& world_;
  model::Model& model_;
  const Data& data_;
  const Recipe& recipe_;
  const cost::ModelAttention attention_;  ///< With the heads of this rank along tp.
  const std::string strategy_;
  ReplicaGroups groups_;
  std::shared_ptr<model::TensorParallel> tensor_parallel_;  ///< Null: tp is 1.
  std::shared_ptr<model::ExpertParallel> expert_parallel_;  ///< Null: no experts.
  Store store_;
};

}  // namespace

Recipe eval_recipe(Recipe recipe) {
  recipe.training.local_batch_size = 1;
  recipe.training.global_batch_size = mesh_of(recipe.parallelism).dp;
  recipe.activation_checkpoint.mode = "none";
  recipe.lr_scheduler = {};
  return recipe;
}

EvalResult evaluate(const comm::Mesh& mesh, model::Model& model, const Data& data,
                    const Recipe& recipe, const EvalOptions& options) {
  check_built(mesh.shape());
  comm::Communicator& world = mesh.world();
  const Recipe one_pass = eval_recipe(recipe);
  return runtime::or_abort(world, [&] {
    expect_same_evaluation(world, data, one_pass, options);
    std::int64_t sequences = 0;
    std::uint64_t digest = 0;
    comm::run_together(world, [&] {
      if (!options.checkpoint.empty() && !options.init_from.empty()) {
        fail<InvalidArgument>("eval: a checkpoint {} and --init-from {} given; one is required",
                              options.checkpoint, options.init_from);
      }
      check_dtypes(one_pass.training,
                   std::int64_t{mesh.size(MeshAxis::Dp)} * mesh.size(MeshAxis::Cp));
      model::check_parameters(model.parameters(), model.units(), mesh.size(MeshAxis::Tp));
      sequences = checked_sequences("eval: --sequences", data, options.sequences);
      if (data.vocab_size() > model.vocab_size()) {
        fail<InvalidArgument>(
            "eval: data with a vocabulary of {}; at most {}, the model's, is required",
            data.vocab_size(), model.vocab_size());
      }
      digest = checked_parts(data, 0, {one_pass.training.seq_len, model.fields()}).digest;
    });
    expect_same_data(world, digest, "data");
    RankEvaluator evaluator(mesh, model, data, one_pass);
    evaluator.load(options);
    return evaluator.run(sequences);
  });
}

EvalResult evaluate(const Recipe& recipe, const Data& data, const EvalOptions& options,
                    const RunRanks& run_ranks) {
  const Recipe one_pass = eval_recipe(recipe);
  validate(one_pass, data.vocab_size());
  EvalResult result;
  const auto body = [&](comm::Communicator& comm) {
    at::set_num_threads(static_cast<int>(one_pass.parallelism.threads_per_rank));
    const std::unique_ptr<model::Model> model = make_model(one_pass);
    const comm::Mesh mesh(comm, mesh_of(one_pass.parallelism));
    const EvalResult mine = evaluate(mesh, *model, data, one_pass, options);
    if (comm.rank() == 0) result = mine;
  };
  const int world = mesh_of(one_pass.parallelism).ranks();
  const double timeout_s = one_pass.comm.train_timeout_seconds;
  if (run_ranks) {
    run_ranks(world, timeout_s, body);
  } else {
    comm::run_ranks(world, body, {.timeout_s = timeout_s});
  }
  return result;
}

}  // namespace armillary::train
