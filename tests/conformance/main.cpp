// The suite on threads, or with --mpi on the processes that mpirun started.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "armillary/comm/mpi.h"
#include "tests/conformance/mpi.h"

namespace armillary::comm {

Communicator*& all_processes() {
  static Communicator* all = nullptr;
  return all;
}

namespace {

int run_on_mpi() {
  if (!mpi_available()) {
    std::puts("[SKIP] no MPI");
    return 0;
  }
  int result = 1;
  try {
    run_mpi_rank([&](Communicator& comm) {
      all_processes() = &comm;
      result = RUN_ALL_TESTS();
    });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return result;
}

}  // namespace
}  // namespace armillary::comm

int main(int argc, char** argv) {
  bool mpi = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    mpi |= argument == "--mpi";
    if (argument.starts_with("--fault=")) return armillary::comm::run_fault(argument.substr(8));
  }
  testing::GTEST_FLAG(filter) =
      mpi ? "Mpi/*:MpiNccl/*:MpiProcesses.*" : "-Mpi/*:MpiNccl/*:MpiProcesses.*";
  testing::InitGoogleTest(&argc, argv);
  return mpi ? armillary::comm::run_on_mpi() : RUN_ALL_TESTS();
}
