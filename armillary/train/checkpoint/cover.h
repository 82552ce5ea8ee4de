// cover.h: whether the shards of a tensor in a checkpoint are the whole tensor.
#pragma once

#include <string>
#include <vector>

#include "armillary/train/checkpoint/manifest.h"

namespace armillary::train {

/// Checks the shards of one tensor, in the checkpoint at `path`: one dtype, one whole shape, and
/// each element once. @throws IoError that names the tensor, and the files of two shards that do
/// not agree. Cost: that of sorting them, and the pairs that overlap in the first dim.
void check_cover(const std::string& path, std::vector<const ManifestTensor*> shards);

}  // namespace armillary::train
