#include "armillary/train/forward_pass.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "armillary/comm/together.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/same_recipe.h"

namespace armillary::train {

Microbatch read_pass(const ForwardParts& parts, const Data& data, std::int64_t first) {
  const comm::Communicator& comm = parts.mesh.along(MeshAxis::Cp);
  Microbatch pass;
  comm::run_together(parts.mesh.world(), [&] {
    pass = read_microbatch(data, first, parts.model, parts.recipe,
                           {parts.attention, comm.rank(), comm.world()});
  });
  // Attention compares the sequences along cp.
  if (parts.tensor_parallel) {
    expect_same_data(parts.mesh.along(MeshAxis::Tp), pass.digest, "sequences");
  }
  return pass;
}

at::Tensor forward_pass(const ForwardParts& parts, const Microbatch& pass,
                        const model::Fields& batch) {
  const at::NoGradGuard no_grad;
  const plan::Problem& problem = pass.problem;
  if (parts.recording != nullptr) parts.recording->begin_problem(problem, parts.strategy);
  const model::ModelInputs inputs{
      .batch = batch,
      .positions_L = pass.positions_L,
      .attends = attend_over_ranks(parts.mesh.along(MeshAxis::Cp),
                                   {.mask = problem.mask,
                                    .layout = problem.layout,
                                    .strategy = parts.strategy,
                                    .transfer_dtype = problem.transfer_dtype,
                                    .sequence = pass.digest,
                                    .proofs = parts.recipe.parallelism.proofs}),
      .tensor_parallel = parts.tensor_parallel,
      .expert_parallel = parts.expert_parallel};
  Store& store = parts.store;
  const auto use = [&store](int unit) {
    if (unit > 0) store.release(unit - 1);
    return store.use(unit);
  };
  at::Tensor output = model::run_units(parts.model, use, inputs);
  store.release(store.units() - 1);
  return output;
}

}  // namespace armillary::train
