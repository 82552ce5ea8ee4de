// parallelism.cpp: the table of [parallelism]. Degrees have their range here; the ones that are not
// built yet are refused by check_built(), with the mesh.
#include "armillary/train/parallelism.h"

#include "armillary/core/threads.h"

namespace armillary::train {

Section section_of(ParallelismOptions& p) {
  const Range degree = between(1, kMaxThreads);
  return {
      "parallelism",
      {
          {"pipeline_parallel_degree", &p.pipeline_parallel_degree, "not built yet: 1", degree},
          {"data_parallel_replicate_degree", &p.data_parallel_replicate_degree,
           "copies of all that data_parallel_shard_degree x context_parallel_degree ranks hold",
           degree},
          {"data_parallel_shard_degree", &p.data_parallel_shard_degree,
           "groups that share the batch, and divide with context_parallel_degree what zero says",
           degree},
          {"context_parallel_degree", &p.context_parallel_degree, "ranks that share each sequence",
           degree},
          {"tensor_parallel_degree", &p.tensor_parallel_degree,
           "ranks that share each matrix, and the tokens between matrices", degree},
          {"expert_parallel_degree", &p.expert_parallel_degree,
           "ranks of all these that share the experts of a layer: neighbours along "
           "tensor_parallel_degree first, then the next ones above",
           degree},
          {"tensor_parallel_keep_inputs", &p.tensor_parallel_keep_inputs,
           "keep gathered inputs of matrices instead of gathering them again in backward"},
          {"zero", &p.zero,
           "what is divided: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too",
           between(0, 3)},
          {"reshard_after_forward", &p.reshard_after_forward,
           "of zero = 3: gather parameters again for backward instead of keeping them"},
          {"threads_per_rank", &p.threads_per_rank, "threads that work for each rank", degree},
          {"strategy", &p.strategy, "as in `armillary plan --strategy`, or auto:cluster=NAME"},
          {"layout", &p.layout, "as in `armillary plan --layout`"},
          {"mask", &p.mask,
           "documents[:within=..] (those packed in the sequence), or as in `armillary plan "
           "--mask`"},
          {"wire", &p.transfer_dtype, "dtype in which partial outputs and gradients travel",
           Names{"accumulator", "input"}},
          {"proofs", &p.proofs,
           "folder of `armillary verify --save-proof`; what it has not is proved here"},
      }};
}

MeshShape mesh_of(const ParallelismOptions& parallelism) {
  // Degrees are at most kMaxThreads, so no number is cut.
  return {.pp = static_cast<int>(parallelism.pipeline_parallel_degree),
          .dp = static_cast<int>(parallelism.data_parallel_replicate_degree *
                                 parallelism.data_parallel_shard_degree),
          .cp = static_cast<int>(parallelism.context_parallel_degree),
          .tp = static_cast<int>(parallelism.tensor_parallel_degree)};
}

}  // namespace armillary::train
