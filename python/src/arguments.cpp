// arguments.cpp: calls from the stack of torch's dispatcher. The arguments behind the tensors are
// the last kCallArguments, whatever the op.
#include "python/src/arguments.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"

namespace armillary::python {
namespace {

/// The lines of a call's text, taken one after the other.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  /// The value of the next line, which has this name.
  std::string_view value(std::string_view name) {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return value_of(line, name);
  }

  /// The value of this name that is all the rest of the text.
  std::string_view last_value(std::string_view name) { return value_of(rest_, name); }

  double number(std::string_view name) {
    const std::string_view text = value(name);
    double result = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, result);
    if (error != std::errc() || stop != end) {
      fail<InvalidArgument>("attention: {} is {}; a number is required", name, quote(text));
    }
    return result;
  }

  std::optional<double> optional_number(std::string_view name) {
    if (!rest_.starts_with(std::string(name) + "=none\n")) return number(name);
    value(name);
    return std::nullopt;
  }

  std::int64_t integer(std::string_view name) { return parse_integer(name, value(name)); }

 private:
  static std::string_view value_of(std::string_view line, std::string_view name) {
    const std::optional<KeyValue> part = split_key_value(line);
    if (part && part->key == name) return part->value;
    fail<InvalidArgument>("attention: the text of a call has {}; {}=.. is required", quote(line),
                          name);
  }

  std::string_view rest_;
};

/// Integers are symbolic while a model is traced; a plan needs their values, so they are fixed.
std::int64_t int_of(const c10::IValue& value) {
  return value.isSymInt() ? value.toSymInt().guard_int(__FILE__, __LINE__) : value.toInt();
}

}  // namespace

Call call_of(const std::string& text) {
  Lines lines(text);
  Call call;
  attention::AttentionOptions& options = call.options;
  call.group.name = lines.value("group");
  options.strategy = lines.value("strategy");
  options.layout = plan::parse_layout(lines.value("layout"));
  const std::int64_t q_len = lines.integer("q_len");
  const std::int64_t kv_len = lines.integer("kv_len");
  options.transfer_dtype = plan::parse_transfer_dtype(lines.value("wire"));
  options.scale = lines.number("scale");
  options.softcap = lines.optional_number("softcap");
  options.dropout.p = lines.number("dropout");
  call.group.timeout_s = lines.number("timeout_s");
  options.timeout_s = call.group.timeout_s;
  options.mask = plan::parse_mask(lines.value("mask"), {q_len, kv_len});
  options.proofs = lines.last_value("proofs");  // A path may have ends of lines.
  return call;
}

Call read_call(const torch::jit::Stack& stack) {
  const c10::IValue* at = &*(stack.end() - kCallArguments);
  // The order is that of kCallSchema.
  Call call = call_of(at[0].toStringRef());
  call.options.dropout.seed = static_cast<std::uint64_t>(int_of(at[1]));
  call.options.dropout.step = static_cast<std::uint64_t>(int_of(at[2]));
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
  const at::Tensor& tensor = value.toTensor();
  if (tensor.numel() != 1 || tensor.scalar_type() != at::kLong || !tensor.is_cpu()) {
    fail<InvalidArgument>(
        "attention: sequence is {} of {} numbers on {}; one Long on cpu is required",
        at::toString(tensor.scalar_type()), tensor.numel(), tensor.device().str());
  }
  return static_cast<std::uint64_t>(*tensor.const_data_ptr<std::int64_t>());
}

}  // namespace armillary::python
