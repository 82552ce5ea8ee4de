// evaluate.cpp: checks before an evaluation, and the launcher of ranks as threads. Parameters and
// passes are those of forward_rank.h.
#include "armillary/train/evaluate.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/forward_rank.h"
#include "armillary/train/mesh.h"
#include "armillary/train/recipe.h"
#include "armillary/train/same_recipe.h"

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
      if (!options.init_from.empty()) {
        check_source(options.init_from, one_pass.model, model.parameters());
      }
      sequences = checked_sequences("eval: --sequences", data, options.sequences);
      if (data.vocab_size() > model.vocab_size()) {
        fail<InvalidArgument>(
            "eval: data with a vocabulary of {}; at most {}, the model's, is required",
            data.vocab_size(), model.vocab_size());
      }
      digest = checked_parts(data, 0, {one_pass.training.seq_len, model.fields()}).digest;
    });
    expect_same_data(world, digest, "data");
    ForwardRank rank(mesh, model, one_pass);
    rank.load(options.checkpoint, options.init_from);
    return rank.loss(data, sequences);
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
