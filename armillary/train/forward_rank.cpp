#include "armillary/train/forward_rank.h"

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "armillary/comm/together.h"
#include "armillary/train/check_replicas.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/expert_parallel_over_ranks.h"
#include "armillary/train/tensor_parallel_over_ranks.h"

namespace armillary::train {

ForwardRank::ForwardRank(const comm::Mesh& mesh, model::Model& model, const Recipe& recipe)
    : mesh_(mesh),
      world_(mesh.world()),
      model_(model),
      recipe_(recipe),
      attention_(heads_along_tp(model.cost().attention, mesh.index(MeshAxis::Tp),
                                mesh.size(MeshAxis::Tp))),
      strategy_(to_string(chosen_strategy(recipe, attention_, mesh.along(MeshAxis::Cp)).strategy)),
      groups_(mesh, recipe.parallelism, has_experts(model)),
      tensor_parallel_(groups_.replicas().tp == nullptr
                           ? nullptr
                           : tensor_parallel_over_ranks(*groups_.replicas().tp)),
      expert_parallel_(expert_parallel_of(model, mesh, groups_.replicas())),
      store_(model, recipe.training.seed, groups_.replicas(), dtypes_of(recipe.training)) {}

void ForwardRank::load(const std::string& checkpoint, const std::string& init_from) {
  comm::run_together(world_, [&] {
    if (!checkpoint.empty()) load_checkpoint(checkpoint);
    if (!init_from.empty()) load_parameters(init_from, recipe_.model, store_);
  });
  expect_equal_start(mesh_, store_);
  store_.gather_values();
}

void ForwardRank::load_checkpoint(const std::string& path) {
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

ForwardParts ForwardRank::parts() {
  return {.mesh = mesh_,
          .model = model_,
          .store = store_,
          .recipe = recipe_,
          .attention = attention_,
          .strategy = strategy_,
          .tensor_parallel = tensor_parallel_,
          .expert_parallel = expert_parallel_};
}

}  // namespace armillary::train
