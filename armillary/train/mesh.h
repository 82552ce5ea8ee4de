// mesh.h: the axes of a mesh (core/mesh_shape.h) that the trainer uses: dp, whose ranks share the
// sequences of a step, cp, whose ranks share the tokens of each sequence, and tp, whose ranks share
// matrices.
#pragma once

#include <cstdint>

#include "armillary/core/mesh_shape.h"
#include "armillary/train/training_options.h"

namespace armillary::train {

/// @throws InvalidArgument if pp, which is not built yet, is not 1.
void check_built(const MeshShape& shape);

/// @throws InvalidArgument unless the ranks along dp share the sequences of a step equally, in
/// passes of training.local_batch_size.
void check_batch(const MeshShape& shape, const TrainingOptions& training);

/// Passes of a rank along dp in a step that check_batch() allows.
std::int64_t microbatches_of(const MeshShape& shape, const TrainingOptions& training);

}  // namespace armillary::train
