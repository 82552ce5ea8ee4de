# Libraries of others, found once for all folders. Their headers are SYSTEM: our warnings are for our code.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_path(ARMILLARY_XXHASH_INCLUDE xxhash.h REQUIRED)  # its header alone
find_path(ARMILLARY_UTF8PROC_INCLUDE utf8proc.h)
find_library(ARMILLARY_UTF8PROC_LIBRARY utf8proc)
if(NOT ARMILLARY_UTF8PROC_INCLUDE OR NOT ARMILLARY_UTF8PROC_LIBRARY)
  message(FATAL_ERROR "no utf8proc here; its header and library are required (Debian: libutf8proc-dev)")
endif()
set(MPI_CXX_SKIP_MPICXX ON)  # its C functions are called, not the C++ ones of MPI-2
find_package(MPI QUIET COMPONENTS CXX)  # without it, armillary/comm/no_mpi stands in
# The headers of CUDA and NCCL, of packages of Python or of a toolkit; their libraries are loaded at run time. Without
# them, armillary/comm/no_nccl stands in.
file(GLOB armillary_nvidia ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*/include)
file(GLOB armillary_cuda /usr/local/cuda/include /usr/local/cuda-1[2-9]*/include)
find_path(ARMILLARY_CUDA_INCLUDE cuda_runtime.h HINTS ${armillary_cuda} ${armillary_nvidia})
find_path(ARMILLARY_NCCL_INCLUDE nccl.h HINTS ${CMAKE_SOURCE_DIR}/.venv/include/nccl ${armillary_nvidia})
set(ARMILLARY_NCCL_FOUND OFF)
if(ARMILLARY_CUDA_INCLUDE AND ARMILLARY_NCCL_INCLUDE)
  set(ARMILLARY_NCCL_FOUND ON)
endif()
find_package(GTest)
find_path(ARMILLARY_SIMGRID_INCLUDE simgrid/s4u.hpp)  # for one test, which says so without it
find_library(ARMILLARY_SIMGRID_LIBRARY simgrid)
find_package(rapidcheck)

set(ARMILLARY_TESTS OFF)
if(GTest_FOUND AND rapidcheck_FOUND)
  set(ARMILLARY_TESTS ON)
else()
  message(STATUS "no tests: GoogleTest (with gmock) and RapidCheck are required for them")
endif()

find_path(ARMILLARY_TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
# Compiled once: as header-only it costs each unit that uses it up to 10 s.
add_library(armillary_tomlplusplus STATIC ${CMAKE_CURRENT_LIST_DIR}/tomlplusplus.cpp)
target_include_directories(armillary_tomlplusplus SYSTEM PUBLIC $<BUILD_INTERFACE:${ARMILLARY_TOMLPLUSPLUS_INCLUDE}>)
target_compile_definitions(armillary_tomlplusplus PUBLIC $<BUILD_INTERFACE:TOML_HEADER_ONLY=0>)
target_compile_options(armillary_tomlplusplus PRIVATE $<$<CONFIG:Release>:-Og>)
set_target_properties(armillary_tomlplusplus PROPERTIES POSITION_INDEPENDENT_CODE ${ARMILLARY_POSITION_INDEPENDENT})
if(ARMILLARY_TORCH)
  include(armillary_torch)
  find_package(PNG)  # for `armillary sample` alone
  if(NOT PNG_FOUND)
    message(FATAL_ERROR "no libpng here; its header and library are required (Debian: libpng-dev)")
  endif()
endif()
