# Libraries of others, found once for all folders. Their headers are SYSTEM: our warnings are for our code.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_path(ARMILLARY_XXHASH_INCLUDE xxhash.h REQUIRED)  # its header alone
set(MPI_CXX_SKIP_MPICXX ON)  # its C functions are called, not the C++ ones of MPI-2
find_package(MPI QUIET COMPONENTS CXX)  # without it, armillary/comm/no_mpi stands in
find_package(GTest)
find_package(rapidcheck)

set(ARMILLARY_TESTS OFF)
if(GTest_FOUND AND rapidcheck_FOUND)
  set(ARMILLARY_TESTS ON)
else()
  message(STATUS "no tests: GoogleTest (with gmock) and RapidCheck are required for them")
endif()

find_path(ARMILLARY_TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
if(ARMILLARY_TORCH)
  add_library(armillary_tomlplusplus INTERFACE IMPORTED)
  target_include_directories(armillary_tomlplusplus INTERFACE ${ARMILLARY_TOMLPLUSPLUS_INCLUDE})
  include(armillary_torch)
endif()
