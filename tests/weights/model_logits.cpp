// model_logits.cpp: the logits of a model that is there (train/checkpoint/model_source.h) on a mesh
// of threads, for tests that compare them with transformers.
//
//   model_logits PATH TOKENS LOGITS CP TP STRATEGY
//
// TOKENS is a safetensors file with `tokens`, int64 [S]; LOGITS becomes one with `logits`, fp32
// [S, V]. The mask is causal, with the window of the model if it has one. All ranks share the
// experts of a model that has some.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/io/safetensors.h"
#include "armillary/model/registry.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/runs.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/data.h"
#include "armillary/train/expert_parallel_over_ranks.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/store.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary {
namespace {

/// The recipe of a model on cp x tp ranks, for a sequence of one document.
train::Recipe recipe_of(const std::string& path, std::int64_t tokens, const MeshShape& shape) {
  train::Recipe recipe;
  recipe.parallelism.mask = "causal";
  train::apply_setting(recipe, "model.from=" + path);
  recipe.training.seq_len = tokens;
  recipe.parallelism.context_parallel_degree = shape.cp;
  recipe.parallelism.tensor_parallel_degree = shape.tp;
  train::validate(recipe, recipe.model.vocab_size);
  return recipe;
}

/// Writes the logits of this rank, of its tokens and words, into those of all.
void compute_logits(const comm::Mesh& mesh, const train::Recipe& recipe, const std::string& path,
                    const at::Tensor& tokens_S, at::Tensor& logits_SV) {
  comm::Communicator& cp = mesh.along(MeshAxis::Cp);
  comm::Communicator& tp = mesh.along(MeshAxis::Tp);
  const std::unique_ptr<model::Model> model = train::make_model(recipe);
  comm::Communicator& world = mesh.world();
  comm::Communicator* const ep = train::has_experts(*model) && world.world() > 1 ? &world : nullptr;
  train::Store store(*model, 1, {.tp = tp.world() > 1 ? &tp : nullptr, .ep = ep});
  train::load_parameters(path, recipe.model, store);

  const plan::Mask mask =
      train::sequence_mask(recipe.parallelism.mask, std::span(&recipe.training.seq_len, 1));
  const plan::Layout layout = plan::parse_layout(recipe.parallelism.layout);
  const auto shards = plan::shards(layout, mask, cp.world());
  const at::Tensor positions_L =
      at::tensor(plan::positions(shards.q[static_cast<std::size_t>(cp.rank())]), at::kLong);
  const model::ModelInputs inputs{
      .batch = {{model::kTokens, tokens_S.index_select(0, positions_L).unsqueeze(0)}},
      .positions_L = positions_L,
      .attends = train::attend_over_ranks(
          cp, {.mask = mask, .layout = layout, .strategy = recipe.parallelism.strategy}),
      .tensor_parallel = tp.world() > 1 ? train::tensor_parallel_over_ranks(tp) : nullptr,
      .expert_parallel =
          ep == nullptr ? nullptr : train::expert_parallel_over_ranks({ep, &world, &world})};
  const at::NoGradGuard no_grad;
  const at::Tensor mine_LV = model::run_units(
                                 *model, [&](int unit) { return store.use(unit); }, inputs)
                                 .squeeze(0);
  const model::EvenPart words = model::even_part(recipe.model.vocab_size, tp.rank(), tp.world());
  logits_SV.narrow(1, words.begin, words.size).index_copy_(0, positions_L, mine_LV);
}

void run(const std::span<char*> words) {
  const io::SafetensorsFile input(words[1]);
  const io::TensorInfo info = input.info("tokens");
  if (info.dtype != io::TensorDtype::I64 || info.shape.size() != 1) {
    fail<InvalidArgument>("model_logits: tokens are {} with {} dims; I64 with 1 is required",
                          to_string(info.dtype), info.shape.size());
  }
  // The file outlives the tensor, which is only read.
  const at::Tensor tokens_S =
      at::from_blob(const_cast<std::byte*>(input.bytes("tokens").data()), info.shape, at::kLong);
  MeshShape shape;
  shape.cp = static_cast<int>(parse_integer("model_logits: CP", words[3], {.min = 1, .max = 64}));
  shape.tp = static_cast<int>(parse_integer("model_logits: TP", words[4], {.min = 1, .max = 64}));
  train::Recipe recipe = recipe_of(words[0], tokens_S.size(0), shape);
  recipe.parallelism.strategy = words[5];

  at::Tensor logits_SV = at::zeros({tokens_S.size(0), recipe.model.vocab_size});
  comm::run_ranks(shape.ranks(), [&](comm::Communicator& comm) {
    if (comm.world() > 1) at::set_num_threads(1);
    const comm::Mesh mesh(comm, shape);
    compute_logits(mesh, recipe, words[0], tokens_S, logits_SV);
  });
  const std::span<const float> values(logits_SV.const_data_ptr<float>(),
                                      static_cast<std::size_t>(logits_SV.numel()));
  io::write_safetensors(
      io::real_file_system(), words[2],
      {{{"logits", io::TensorDtype::F32, logits_SV.sizes().vec()}, std::as_bytes(values)}}, {});
}

}  // namespace
}  // namespace armillary

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fputs("model_logits: PATH TOKENS LOGITS CP TP STRATEGY are required\n", stderr);
    return 2;
  }
  try {
    armillary::run(std::span(argv + 1, 6));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
