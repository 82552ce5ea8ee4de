// arguments.h: the arguments of the ops, as they lie on the stack of PyTorch's dispatcher.
//
// All ops end with the same arguments, which describe a call apart from its tensors: a text, and
// the two numbers that a layer or a step changes. They are plain values, so that a compiled graph
// or an exported program holds them, in whatever process it runs.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "python/src/groups.h"

namespace armillary::python {

/// The arguments that all ops end with, in this order, as a schema says it.
inline constexpr const char* kCallSchema = "str call, int dropout_seed, SymInt dropout_step";
inline constexpr std::size_t kCallArguments = 3;

/// A call as those arguments describe it; tensors are not filled in.
struct Call {
  GroupUse group;
  attention::AttentionOptions options;
};

/// Reads the text of a call: lines `name=value`, in the order of Spread._call of the package. Seed
/// and step of the dropout are not in it. Cost: O(text), as much as to tell it from another; what
/// is known of its problem is found by the group (runtime/group_state.h). Threads: any. @throws
/// InvalidArgument as the parsers of plan/.
Call call_of(const std::string& text);

/// Reads the last arguments of the stack, which stay there. @throws as call_of.
Call read_call(const torch::jit::Stack& stack);

/// Takes `count` values off the stack.
std::vector<c10::IValue> take(torch::jit::Stack& stack, std::size_t count);

/// The tensor, undefined for None.
at::Tensor tensor_or_none(const c10::IValue& value);

/// The bits of a tensor of one int64; 0 for None. @throws InvalidArgument for another tensor.
std::uint64_t number_of(const c10::IValue& value);

}  // namespace armillary::python
