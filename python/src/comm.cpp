// comm.cpp: process groups, as far as Python needs them.
#include <pybind11/stl.h>

#include <string>

#include "armillary/core/error.h"
#include "python/src/bind.h"
#include "python/src/groups.h"

namespace armillary::python {
namespace py = pybind11;

void bind_comm(py::module_& module) {
  module.def("leave_groups", &leave_groups, py::call_guard<py::gil_scoped_release>());
  module.def("leave_group", &leave_group, py::arg("group"), py::arg("id"),
             py::call_guard<py::gil_scoped_release>());
  module.def("inherit_groups", &inherit_groups, py::arg("names"));
  module.def(
      "id_of", [](const std::string& group) { return size_of_group(group).id; }, py::arg("group"));
  module.def(
      "world_of", [](const std::string& group) { return size_of_group(group).world; },
      py::arg("group"));
  module.def(
      "refuse",
      [](const std::string& group, double timeout_s, const std::string& text) {
        refuse_on_group({.name = group, .timeout_s = timeout_s}, text);
      },
      py::arg("group"), py::arg("timeout_s"), py::arg("text"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace armillary::python
