// parallelism.h: the [parallelism] section of a recipe: the mesh (mesh.h), threads, and the
// attention over the ranks along cp, by names of plan/.
#pragma once

#include <cstdint>
#include <string>

#include "armillary/core/mesh_shape.h"
#include "armillary/core/section.h"

namespace armillary::train {

struct ParallelismOptions {
  std::int64_t pipeline_parallel_degree = 1;
  std::int64_t data_parallel_replicate_degree = 1;
  std::int64_t data_parallel_shard_degree = 1;
  std::int64_t context_parallel_degree = 1;
  std::int64_t tensor_parallel_degree = 1;
  std::int64_t expert_parallel_degree = 1;
  bool tensor_parallel_keep_inputs = false;
  std::int64_t zero = 1;
  bool reshard_after_forward = true;
  std::int64_t threads_per_rank = 1;
  std::string strategy = "ring";
  std::string layout = "zigzag";
  std::string mask = "documents";
  std::string transfer_dtype = "accumulator";
  std::string proofs;
};

Section section_of(ParallelismOptions& parallelism);

/// The mesh that the degrees ask for.
MeshShape mesh_of(const ParallelismOptions& parallelism);

}  // namespace armillary::train
