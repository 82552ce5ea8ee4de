// saved_form.cpp: shapes of the results of the ops, for fake kernels.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/core/error.h"
#include "armillary/plan/mask/mask.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/groups.h"

namespace armillary::python {
namespace py = pybind11;
namespace {

/// Shapes of q, k, v, out and lse as the strategy saves them; empty if they are the caller's own.
std::vector<std::vector<std::int64_t>> saved_shapes(const py::dict& shape,
                                                    const std::string& text) {
  const auto number = [&](const char* key) { return shape[key].cast<std::int64_t>(); };
  const attention::AttentionShape sizes{.batch = number("batch"),
                                        .q_tokens = number("q_tokens"),
                                        .kv_tokens = number("kv_tokens"),
                                        .heads = number("heads"),
                                        .kv_heads = number("kv_heads"),
                                        .head_dim = number("head_dim"),
                                        .value_dim = number("value_dim")};
  const py::gil_scoped_release no_gil;
  const Call call = call_of(text);
  const GroupSize group = size_of_group(call.group.name);
  const attention::SavedForm form =
      attention::saved_form(sizes, {group.rank, group.world}, call.options);
  std::vector<std::vector<std::int64_t>> shapes;
  shapes.reserve(form.shapes.size());
  for (std::size_t i = 0; i < form.shapes.size(); ++i) {
    shapes.push_back(form.is_own[i] ? form.shapes[i] : std::vector<std::int64_t>{});
  }
  return shapes;
}

}  // namespace

void bind_attention(py::module_& module) {
  module.def("saved_shapes", &saved_shapes, py::arg("shape"), py::arg("call"));
}

}  // namespace armillary::python
