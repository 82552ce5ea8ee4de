// errors.h: errors of the library as exceptions of Python (armillary/errors.py).
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace armillary::python {

/// Sets the Python exception that stands for this error. Requires the GIL.
void set_python_error(const std::exception& error);

/// Errors of functions that are bound with pybind11 become exceptions of errors.py.
void bind_errors(pybind11::module_& module);

/// Returns action(). Errors of the library are thrown as pybind11::error_already_set, which the
/// dispatcher and the autograd engine of PyTorch pass on as it is. Called without the GIL.
template <class Action>
decltype(auto) with_python_errors(const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    // PyTorch has its own way with errors of its own.
    if (dynamic_cast<const pybind11::error_already_set*>(&error)) throw;
    const pybind11::gil_scoped_acquire gil;
    set_python_error(error);
    throw pybind11::error_already_set();
  }
}

}  // namespace armillary::python
