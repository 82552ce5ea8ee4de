// fed_call.cpp: a call of attention whose inputs come one by one, for Python.
//
//   FedCall(settings) --feed_k--> begun, K travels --feed_v--> V travels --finish(q)--> out, in the
//                                       the group is the call's own            graph over q, k, v
//
// The call is an AttentionInProgress, which its group holds until it is over (groups.h). This class
// adds the settings of Python and the graph: backward is the op attention_backward, as for a call
// of the op attention_forward.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
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

class FedCall {
 public:
  /// `settings`: the arguments of kCallSchema. @throws InvalidArgument if they are none.
  FedCall(const Stack& settings, Extras extras)
      : extras_(std::move(extras)), settings_(read_call(settings)) {
    // The arguments of attention_forward behind the sinks.
    rest_ = {IValue(extras_.slopes), IValue(extras_.sequence), IValue(false)};
    rest_.insert(rest_.end(), settings.begin(), settings.end());
  }

  void feed_k(const at::Tensor& k_BLGD, const QueryShape& q) {
    attention::AttentionOptions options = settings_.options;
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
    try {
      call_ = begin_on_group(settings_.group, [&](comm::Communicator& comm) {
        AttentionInProgress call =
            Attention(comm, options).begin(attention::CallKind::Functional, shape);
        call.feed_k(k_BLGD);
        return call;
      });
    } catch (const std::exception& error) {
      failure_ = error.what();
      throw;
    }
    k_BLGD_ = k_BLGD;
  }

  void feed_v(const at::Tensor& v_BLGE) {
    go_on([&] { call_->feed_v(v_BLGE); });
    v_BLGE_ = v_BLGE;
  }

  /// The output; a node of the graph over the three and the sinks.
  at::Tensor finish(const at::Tensor& q_BLHD) {
    const ForwardRun run = [&](Stack& stack) {
      const std::vector<IValue> inputs = take(stack, stack.size());
      with_python_errors([&] {
        attention::AttentionResults results;
        go_on([&] {
          results = call_->finish(inputs[0].toTensor(), inputs[1].toTensor(), inputs[2].toTensor());
        });
        push_forward(stack, results);
      });
    };
    const at::Tensor qkv[] = {q_BLHD, std::exchange(k_BLGD_, {}), std::exchange(v_BLGE_, {})};
    return forward_in_graph(qkv, extras_.sinks, rest_, run).front();
  }

  /// Ends a call that is in progress, on all ranks.
  void drop(const std::string& text) {
    k_BLGD_ = v_BLGE_ = at::Tensor();
    if (!call_ || call_->is_over()) return;
    try {
      refuse_on_group(use(), text);
    } catch (const Error&) {
      // The text, which the others have been told.
    }
  }

  /// The method that comes next. @throws CommError, with the reason, if the call was dropped or
  /// could not begin.
  std::string required() const {
    if (failure_) fail<CommError>("attention: the call has ended: {}", *failure_);
    if (!call_) return "feed_k";
    try {
      call_->check_in_progress();
    } catch (const InvalidArgument&) {
      return "another call";
    }
    return v_BLGE_.defined() ? "finish" : "feed_v";
  }

 private:
  GroupUse use() const {
    return {.name = settings_.group.name, .timeout_s = settings_.group.timeout_s, .call = call_};
  }

  void go_on(const std::function<void()>& action) const {
    call_->check_in_progress();  // Its group may be gone if it was dropped.
    on_group(use(), [&](comm::Communicator&) { action(); });
  }

  Extras extras_;
  Call settings_;  ///< Without the extras.
  std::vector<IValue> rest_;
  std::shared_ptr<AttentionInProgress> call_;  ///< Null before K is fed.
  std::optional<std::string> failure_;         ///< Why the call could not begin.
  at::Tensor k_BLGD_;                          ///< As they were fed, until the end.
  at::Tensor v_BLGE_;
};

}  // namespace

void bind_fed_call(py::module_& module) {
  using BelowAutocast = c10::impl::ExcludeDispatchKeyGuard;
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<FedCall>(module, "FedCall")
      .def(py::init([](const py::list& settings, std::optional<at::Tensor> sinks,
                       std::optional<at::Tensor> slopes, std::optional<at::Tensor> sequence) {
             return std::make_unique<FedCall>(
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
      .def("finish", torch::wrap_pybind_function_no_gil([](FedCall& call, const at::Tensor& q) {
             const BelowAutocast below(c10::autocast_dispatch_keyset);
             return call.finish(q);
           }),
           py::arg("q"))
      .def(
          "drop", [](FedCall& call, const std::string& text) { call.drop(text); }, py::arg("text"),
          Release())
      .def_property_readonly("required", &FedCall::required);
}

}  // namespace armillary::python
