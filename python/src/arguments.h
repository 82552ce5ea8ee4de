// arguments.h: the arguments of the ops, as they lie on the stack of PyTorch's dispatcher.
//
// All ops end with the same arguments, which describe a call apart from its tensors and are plain
// values, so that a compiled graph or an exported program holds them as constants.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "python/src/groups.h"

namespace armillary::python {

/// The arguments that all ops end with, in this order, as a schema says it.
inline constexpr const char* kCallSchema =
    "str group, str strategy, str layout, str mask, int q_len, int kv_len, str wire, float scale, "
    "float? softcap, float dropout, int dropout_seed, SymInt dropout_step, float timeout_s, "
    "str proofs";
inline constexpr std::size_t kCallArguments = 14;

/// A call as those arguments describe it; tensors are not filled in.
struct Call {
  GroupUse group;
  attention::AttentionOptions options;
};

/// Reads the last arguments of the stack, which stay there. A mask that was read recently is not
/// parsed again. @throws InvalidArgument as the parsers of plan/.
Call read_call(const torch::jit::Stack& stack);

/// Takes `count` values off the stack.
std::vector<c10::IValue> take(torch::jit::Stack& stack, std::size_t count);

/// The tensor, undefined for None.
at::Tensor tensor_or_none(const c10::IValue& value);

/// The bits of a tensor of one int64; 0 for None. @throws InvalidArgument for another tensor.
std::uint64_t number_of(const c10::IValue& value);

}  // namespace armillary::python
