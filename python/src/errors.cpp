// errors.cpp: C++ exceptions become the classes of errors.py, which are found by name when one is
// thrown: users catch those, and pybind11 needs no class of its own.
#include "python/src/errors.h"

#include <c10/util/Exception.h>

#include "armillary/core/error.h"

namespace armillary::python {
namespace py = pybind11;
namespace {

/// The name of the class in errors.py.
const char* class_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error)) return "InvalidArgument";
  if (dynamic_cast<const PlanError*>(&error)) return "PlanError";
  if (dynamic_cast<const CommError*>(&error)) return "CommError";
  if (dynamic_cast<const IoError*>(&error)) return "IoError";
  if (dynamic_cast<const InternalError*>(&error)) return "InternalError";
  return "Error";
}

}  // namespace

void set_python_error(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const py::object type = py::module_::import("armillary.errors").attr(class_of(error));
  PyErr_SetString(type.ptr(), of_torch ? of_torch->what_without_backtrace() : error.what());
}

void bind_errors(py::module_& /*module*/) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
}

}  // namespace armillary::python
