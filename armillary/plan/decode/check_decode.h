// check_decode.h: proves that the programs of a decode step give every rank the result over the
// keys of all ranks, or says where they do not. Rules, by name:
//
//   well_formed, zero_copy, match, order   those of the machine (plan/program/check.h): no hazard,
//              no deadlock
//   caller     there are no inputs; the outputs are the sums of all layers, each alone in a slot of
//              the caller, and no other tile is in one
//   layer      an op shows whole tiles of the layer that its step names
//   owner      a rank attends to its own keys, once a layer
//   undefined  no op reads a part that was not written, or was replaced in its slot
//   twice      no part is written twice
//   sequence   parts are merged into the sum of their layer, each once, in the order of ranks
//   complete   at the end every sum has the parts of all ranks
//   bytes      the messages have as many bytes as the closed form of the shape
#pragma once

#include <vector>

#include "armillary/plan/decode/decode_program.h"
#include "armillary/plan/program/diagnostics.h"

namespace armillary::plan::decode {

/// An empty result means that the programs are a decode step of this shape; otherwise the first
/// cause. Any programs may be given; `world` has the measures of decode_measures().
/// @throws InvalidArgument as check_shape(). Cost: O(ops).
std::vector<Diagnostic> check_decode(const World& world, const DecodeShape& shape, int limit = 20);

}  // namespace armillary::plan::decode
