// fed_call.cpp: a call of attention whose inputs come one by one, for Python.
//
//   FedCall(settings) --feed_k--> begun, K travels --feed_v--> V travels --finish(q)--> out, in the
//                                       the group is the call's own            graph over q, k, v
//
// The registry of groups holds the call while it is under way, and ends it before the communicator
// is dropped. Backward is the op attention_backward, as for a call of the op attention_forward.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/core/error.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/forward.h"
#include "python/src/groups.h"

namespace armillary::python {
namespace py = pybind11;
namespace {

using attention::Attention;
using attention::AttentionInProgress;
using c10::IValue;
using torch::jit::Stack;

/// The arguments of kCallSchema, read as the op reads them.
Stack stack_of(const py::list& settings) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("armillary::attention_forward", "");
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  Stack stack;
  for (std::size_t i = 0; i < kCallArguments; ++i) {
    const c10::Argument& argument = arguments[arguments.size() - kCallArguments + i];
    stack.push_back(torch::jit::toIValue(settings[i], argument.type()));
  }
  return stack;
}

/// Tensors of a call besides q, k and v.
struct Extras {
  std::optional<at::Tensor> sinks;
  std::optional<at::Tensor> slopes;
  std::optional<at::Tensor> sequence;
};

/// The part of a call's shape that K does not say.
struct QueryShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t value_dim = 0;
};

class FedCall : public LongCall, public std::enable_shared_from_this<FedCall> {
 public:
  FedCall(Stack settings, Extras extras)
      : settings_(std::move(settings)), extras_(std::move(extras)), call_(read_call(settings_)) {}

  ~FedCall() override {
    // Threads of the communicator do not exist in a forked child.
    if (process_ != getpid()) static_cast<void>(call_in_progress_.release());
  }

  bool has_begun() const override { return has_begun_; }

  bool is_under_way() const override { return call_in_progress_ != nullptr; }

  void end(const std::string& reason) noexcept override {
    call_in_progress_.reset();
    if (reason_.empty()) reason_ = reason;
  }

  void feed_k(const at::Tensor& k_BLGD, const QueryShape& q) {
    on_group(use(), [&](comm::Communicator& comm) {
      has_begun_ = true;
      attention::AttentionOptions options = call_.options;
      options.sinks_H = extras_.sinks.value_or(at::Tensor());
      options.alibi_slopes_H = extras_.slopes.value_or(at::Tensor());
      options.sequence = number_of(IValue(extras_.sequence));
      const attention::AttentionShape shape{.batch = k_BLGD.size(0),
                                            .q_tokens = q.tokens,
                                            .kv_tokens = k_BLGD.size(1),
                                            .heads = q.heads,
                                            .kv_heads = k_BLGD.size(2),
                                            .head_dim = k_BLGD.size(3),
                                            .value_dim = q.value_dim,
                                            .dtype = k_BLGD.scalar_type()};
      call_in_progress_ = std::make_unique<AttentionInProgress>(
          Attention(comm, options).begin(attention::CallKind::Functional, shape));
      call_in_progress_->feed_k(k_BLGD);
    });
  }

  void feed_v(const at::Tensor& v_BLGE) {
    check_under_way();
    on_group(use(), [&](comm::Communicator&) {
      check_under_way();
      call_in_progress_->feed_v(v_BLGE);
    });
  }

  /// The output; a node of the graph over the three and the sinks.
  at::Tensor finish(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) {
    const ForwardRun run = [&](Stack& stack) {
      const std::vector<IValue> inputs = take(stack, stack.size());
      with_python_errors([&] {
        push_forward(stack,
                     finished({inputs[0].toTensor(), inputs[1].toTensor(), inputs[2].toTensor()}));
      });
    };
    std::vector<IValue> rest{IValue(extras_.slopes), IValue(extras_.sequence), IValue(false)};
    rest.insert(rest.end(), settings_.begin(), settings_.end());
    const at::Tensor qkv[] = {q_BLHD, k_BLGD, v_BLGE};
    return forward_in_graph(qkv, extras_.sinks, rest, run).front();
  }

  /// Ends a call that is under way, on all ranks.
  void drop(const std::string& text) {
    if (!is_under_way() || process_ != getpid()) return;
    try {
      refuse_on_group(use(), text);
    } catch (const Error&) {
      // The text, which the others have been told.
    }
  }

  /// Why the call ended before it had finished; empty if it did not.
  const std::string& reason() const { return reason_; }

 private:
  GroupUse use() {
    GroupUse use = call_.group;
    use.call = shared_from_this();
    return use;
  }

  void check_under_way() const {
    if (is_under_way()) return;
    fail<CommError>("attention: the call has ended{}{}", reason_.empty() ? "" : ": ", reason_);
  }

  attention::AttentionResults finished(const attention::AttentionInputs& qkv) {
    check_under_way();
    attention::AttentionResults results;
    on_group(use(), [&](comm::Communicator&) {
      check_under_way();
      results = call_in_progress_->finish(qkv.q_BLHD, qkv.k_BLGD, qkv.v_BLGE);
      call_in_progress_.reset();
    });
    return results;
  }

  const pid_t process_ = getpid();
  Stack settings_;  ///< The arguments of kCallSchema.
  Extras extras_;
  Call call_;
  bool has_begun_ = false;
  std::unique_ptr<AttentionInProgress> call_in_progress_;  ///< Null unless under way.
  std::string reason_;
};

}  // namespace

void bind_fed_call(py::module_& module) {
  using BelowAutocast = c10::impl::ExcludeDispatchKeyGuard;
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<FedCall, std::shared_ptr<FedCall>>(module, "FedCall")
      .def(py::init([](const py::list& settings, std::optional<at::Tensor> sinks,
                       std::optional<at::Tensor> slopes, std::optional<at::Tensor> sequence) {
             return std::make_shared<FedCall>(
                 stack_of(settings),
                 Extras{std::move(sinks), std::move(slopes), std::move(sequence)});
           }),
           py::arg("settings"), py::arg("sinks"), py::arg("alibi_slopes"), py::arg("sequence"))
      .def(
          "feed_k",
          [](FedCall& call, const at::Tensor& k, std::int64_t tokens, std::int64_t heads,
             std::int64_t value_dim) {
            const BelowAutocast below(c10::autocast_dispatch_keyset);
            with_python_errors([&] { call.feed_k(k, {tokens, heads, value_dim}); });
          },
          py::arg("k"), py::arg("q_tokens"), py::arg("heads"), py::arg("value_dim"), Release())
      .def(
          "feed_v",
          [](FedCall& call, const at::Tensor& v) {
            const BelowAutocast below(c10::autocast_dispatch_keyset);
            with_python_errors([&] { call.feed_v(v); });
          },
          py::arg("v"), Release())
      // Hooks of saved tensors throw errors of Python through it, which PyTorch's wrapper passes
      // on.
      .def("finish",
           torch::wrap_pybind_function_no_gil(
               [](FedCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
                 const BelowAutocast below(c10::autocast_dispatch_keyset);
                 return call.finish(q, k, v);
               }),
           py::arg("q"), py::arg("k"), py::arg("v"))
      .def(
          "drop", [](FedCall& call, const std::string& text) { call.drop(text); }, py::arg("text"),
          Release())
      .def_property_readonly("is_under_way", &FedCall::is_under_way)
      .def_property_readonly("reason", &FedCall::reason);
}

}  // namespace armillary::python
