#include "python/src/arguments.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <deque>
#include <mutex>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::python {
namespace {

/// Masks by their text. Packed documents have long ones, and every layer of a model has the same.
class Masks {
 public:
  plan::Mask parse(const std::string& text, plan::Lengths lengths) {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : recent_) {
      const bool same = entry.mask.q_len() == lengths.q && entry.mask.kv_len() == lengths.kv;
      if (same && entry.text == text) return entry.mask;
    }
    constexpr std::size_t kMost = 16;
    recent_.push_front({text, plan::parse_mask(text, lengths)});
    if (recent_.size() > kMost) recent_.pop_back();
    return recent_.front().mask;
  }

 private:
  struct Entry {
    std::string text;
    plan::Mask mask;
  };
  std::mutex mutex_;
  std::deque<Entry> recent_;  ///< Newest first.
};

plan::Mask mask_of(const std::string& text, plan::Lengths lengths) {
  static Masks* const masks = new Masks;  // Never destroyed, as the registry of groups.
  return masks->parse(text, lengths);
}

std::int64_t int_of(const c10::IValue& value) {
  return value.isSymInt() ? value.toSymInt().guard_int(__FILE__, __LINE__) : value.toInt();
}

}  // namespace

Call read_call(const torch::jit::Stack& stack) {
  const c10::IValue* at = &*(stack.end() - kCallArguments);
  // The order is that of kCallSchema.
  Call call;
  call.group.name = at[0].toStringRef();
  attention::AttentionOptions& options = call.options;
  options.strategy = at[1].toStringRef();
  options.layout = plan::parse_layout(at[2].toStringRef());
  options.mask = mask_of(at[3].toStringRef(), {int_of(at[4]), int_of(at[5])});
  options.wire = plan::parse_wire(at[6].toStringRef());
  options.scale = at[7].toDouble();
  if (!at[8].isNone()) options.softcap = at[8].toDouble();
  options.dropout = {.p = at[9].toDouble(),
                     .seed = static_cast<std::uint64_t>(int_of(at[10])),
                     .step = static_cast<std::uint64_t>(int_of(at[11]))};
  call.group.timeout_s = at[12].toDouble();
  options.timeout_s = call.group.timeout_s;
  options.proofs = at[13].toStringRef();
  return call;
}

std::vector<c10::IValue> take(torch::jit::Stack& stack, std::size_t count) {
  std::vector<c10::IValue> taken(std::make_move_iterator(stack.end() - count),
                                 std::make_move_iterator(stack.end()));
  stack.resize(stack.size() - count);
  return taken;
}

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

std::uint64_t number_of(const c10::IValue& value) {
  if (value.isNone()) return 0;
  const at::Tensor& given = value.toTensor();
  if (given.numel() != 1 || given.scalar_type() != at::kLong || !given.is_cpu()) {
    fail<InvalidArgument>(
        "attention: sequence is {} of {} numbers on {}; one Long on cpu is required",
        at::toString(given.scalar_type()), given.numel(), given.device().str());
  }
  return static_cast<std::uint64_t>(*given.const_data_ptr<std::int64_t>());
}

}  // namespace armillary::python
