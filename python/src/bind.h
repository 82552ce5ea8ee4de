// bind.h: the functions that add the parts of the library to the module, one for each folder.
#pragma once

#include <pybind11/pybind11.h>

namespace armillary::python {

void bind_plan(pybind11::module_& module);       ///< Masks, plans, proofs, shards.
void bind_check(pybind11::module_& module);      ///< Rows and bounds of `check`.
void bind_comm(pybind11::module_& module);       ///< Process groups.
void bind_attention(pybind11::module_& module);  ///< Forms of saved tensors; the ops register
                                                 ///< themselves with PyTorch.
void bind_fed_call(pybind11::module_& module);   ///< Calls whose inputs come one by one.
void bind_sessions(pybind11::module_& module);   ///< Models that read and continue sequences.

}  // namespace armillary::python
