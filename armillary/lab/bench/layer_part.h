// layer_part.h: ranks on which a layer does only a part of its work, for the time of that part.
//
//   Compute     ops run, messages are over as soon as they start and move no bytes
//   Messages    messages travel, ops are over as soon as they start and compute nothing
//
// All else is as in the whole layer: agreement, the order of the plan, and its waits. Results have
// no meaning. Memory that a message would have filled is zero, in every call; the time to clear it
// is part of Compute.
#pragma once

#include <cstdint>
#include <memory>

#include "armillary/lab/bench/ranks.h"

namespace armillary::bench {

enum class LayerPart : std::uint8_t { Compute, Messages };

/// The same `world` ranks, whose works are called with a communicator that leaves out the other
/// part. Attention on it has a runtime::Rank of its own.
std::unique_ptr<Ranks> with_only(LayerPart part, int world, std::unique_ptr<Ranks> ranks);

}  // namespace armillary::bench
