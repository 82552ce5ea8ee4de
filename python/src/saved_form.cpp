// saved_form.cpp: shapes of the results of the ops, for fake kernels.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/functional.h"
#include "armillary/core/error.h"
#include "armillary/plan/mask.h"
#include "python/src/bind.h"
#include "python/src/groups.h"

namespace armillary::python {
namespace py = pybind11;
namespace {

/// A call of attention as far as shapes depend on it.
struct FormRequest {
  std::string group;
  std::string strategy;
  std::string layout;
  std::string mask;
  std::pair<std::int64_t, std::int64_t> lengths;
};

/// Shapes of q, k, v, out and lse as the strategy saves them; empty if they are the caller's own.
std::vector<std::vector<std::int64_t>> saved_shapes(const py::dict& shape,
                                                    const FormRequest& request) {
  const auto number = [&](const char* key) { return shape[key].cast<std::int64_t>(); };
  const attention::AttentionShape asked{.batch = number("batch"),
                                        .q_tokens = number("q_tokens"),
                                        .kv_tokens = number("kv_tokens"),
                                        .heads = number("heads"),
                                        .kv_heads = number("kv_heads"),
                                        .head_dim = number("head_dim"),
                                        .value_dim = number("value_dim")};
  const py::gil_scoped_release no_gil;
  const GroupSize group = size_of_group(request.group);
  const attention::SavedForm form = attention::saved_form(
      asked, {group.rank, group.world},
      {.mask = plan::parse_mask(request.mask, {request.lengths.first, request.lengths.second}),
       .layout = plan::parse_layout(request.layout),
       .strategy = request.strategy});
  std::vector<std::vector<std::int64_t>> shapes;
  for (std::size_t i = 0; i < form.shapes.size(); ++i) {
    shapes.push_back(form.is_own[i] ? form.shapes[i] : std::vector<std::int64_t>{});
  }
  return shapes;
}

}  // namespace

void bind_attention(py::module_& module) {
  module.def(
      "saved_shapes",
      [](const py::dict& shape, const std::string& group, const std::string& strategy,
         const std::string& layout, const std::string& mask,
         std::pair<std::int64_t, std::int64_t> lengths) {
        return saved_shapes(shape, {group, strategy, layout, mask, lengths});
      },
      py::arg("shape"), py::arg("group"), py::arg("strategy"), py::arg("layout"), py::arg("mask"),
      py::arg("lengths"));
}

}  // namespace armillary::python
