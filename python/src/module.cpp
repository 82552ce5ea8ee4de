// module.cpp: the module _native. armillary/__init__.py checks the version of torch before it loads
// it.
#include <pybind11/pybind11.h>

#include "armillary/version.h"
#include "python/src/bind.h"
#include "python/src/errors.h"

PYBIND11_MODULE(_native, module) {
  module.attr("VERSION") = ARMILLARY_VERSION;
  armillary::python::bind_errors(module);
  armillary::python::bind_plan(module);
  armillary::python::bind_check(module);
  armillary::python::bind_comm(module);
  armillary::python::bind_attention(module);
  armillary::python::bind_fed_call(module);
  armillary::python::bind_sessions(module);
}
