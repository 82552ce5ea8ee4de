# Makes the imported target Armillary::libtorch from the torch package of a Python.

if(SKBUILD)  # a wheel is for the Python that builds it
  set(ARMILLARY_PYTHON ${PYTHON_EXECUTABLE})
endif()
if(NOT ARMILLARY_PYTHON)
  if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
    set(ARMILLARY_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  else()
    find_program(ARMILLARY_PYTHON3 python3 REQUIRED)
    set(ARMILLARY_PYTHON ${ARMILLARY_PYTHON3})
  endif()
endif()

# Importing torch takes seconds; ask again only when the Python changes. For a wheel, its torch may have.
if(SKBUILD OR NOT ARMILLARY_TORCH_ASKED STREQUAL ARMILLARY_PYTHON)
  execute_process(
    COMMAND ${ARMILLARY_PYTHON} -c
      "import os, torch
print(os.path.dirname(torch.__file__), torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')"
    OUTPUT_VARIABLE asked ERROR_VARIABLE complaint RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARMILLARY_PYTHON} cannot import torch; run ./dev setup build, name a Python that "
      "has torch >= 2.11 with -DARMILLARY_PYTHON=, or build without it: cmake --preset plan\n${complaint}")
  endif()
  list(GET asked 0 root)
  list(GET asked 1 version)
  list(GET asked 2 cxx11_abi)
  if(version VERSION_LESS 2.11)
    message(FATAL_ERROR "${ARMILLARY_PYTHON} has torch ${version}; at least 2.11 is required")
  endif()
  set(ARMILLARY_TORCH_ROOT ${root} CACHE INTERNAL "Folder of the torch package")
  set(ARMILLARY_TORCH_VERSION ${version} CACHE INTERNAL "Version of the torch package")
  set(ARMILLARY_TORCH_CXX11_ABI ${cxx11_abi} CACHE INTERNAL "std::string ABI of the torch package")
  set(ARMILLARY_TORCH_ASKED ${ARMILLARY_PYTHON} CACHE INTERNAL "Python that answered")
endif()
message(STATUS "torch ${ARMILLARY_TORCH_VERSION} in ${ARMILLARY_TORCH_ROOT}")

# The wheel brings headers of a newer fmt, which come before the system's, and no library: it is compiled here once, as
# header-only it costs every unit 3 s. fmt's inline namespaces keep the two apart, and no header of ours has an fmt type
# in a signature that is linked.
add_library(armillary_torch_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/torch_fmt.cpp)
set_target_properties(armillary_torch_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(armillary_torch_fmt SYSTEM PRIVATE ${ARMILLARY_TORCH_ROOT}/include)
target_compile_definitions(armillary_torch_fmt PRIVATE _GLIBCXX_USE_CXX11_ABI=${ARMILLARY_TORCH_CXX11_ABI})

include(ArmillaryLibtorch)
armillary_add_libtorch(${ARMILLARY_TORCH_ROOT} ${ARMILLARY_TORCH_CXX11_ABI} armillary_torch_fmt)
