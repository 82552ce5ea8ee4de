// check.cpp: the rows and bounds of a report of `check`, which C++ and Python share.
#include <pybind11/stl.h>

#include "armillary/core/check_rows.h"
#include "python/src/bind.h"

namespace armillary::python {

void bind_check(pybind11::module_& module) {
  module.attr("CHECK_ROWS") = pybind11::tuple(pybind11::cast(kCheckRows));
  module.attr("CHECK_BOUND") = kCheckBound;
  module.def("narrow_bound", &narrow_bound);
  module.def("leak_bound", &leak_bound);
}

}  // namespace armillary::python
