// The suite on processes: --processes=N starts this program N times, as the ranks of a group.
// Without it, the tests that start failing ranks run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "tests/conformance_c10d/processes.h"

namespace armillary::comm {

Communicator*& all_processes() {
  static Communicator* all = nullptr;
  return all;
}

namespace {

constexpr const char* kOnProcesses = "C10d/*:C10dProcesses.*";

int run_suite_as_rank(const C10dRendezvous& place) {
  int result = 1;
  try {
    run_c10d_rank(
        [&](Communicator& comm) {
          all_processes() = &comm;
          result = RUN_ALL_TESTS();
        },
        place, {.timeout_s = 120});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return result;
}

/// Prints what the first process says, and of the others what went wrong.
int run_suite_on_processes(int world, int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  int result = 0;
  int rank = 0;
  for (const ProcessEnd& outcome : run_as_ranks(world, arguments, 300)) {
    if (outcome.exit_code != 0) {
      result = 1;
      fmt::print("rank {}: exit code {}, signal {}, {:.1f} s\n{}\n", rank, outcome.exit_code,
                 outcome.signal, outcome.seconds, outcome.output);
    } else if (rank == 0) {
      fmt::print("{}", outcome.output);
    }
    ++rank;
  }
  return result;
}

int run_program(int argc, char** argv) {
  std::string place;
  std::string fault;
  int processes = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--c10d=")) place = argument.substr(7);
    if (argument.starts_with("--fault=")) fault = argument.substr(8);
    if (argument.starts_with("--processes="))
      processes = std::stoi(std::string(argument.substr(12)));
  }
  if (!fault.empty()) return run_fault(fault, place_of(place));
  if (processes > 0 && place.empty()) return run_suite_on_processes(processes, argc, argv);
  testing::GTEST_FLAG(filter) = place.empty() ? fmt::format("-{}", kOnProcesses) : kOnProcesses;
  testing::InitGoogleTest(&argc, argv);
  return place.empty() ? RUN_ALL_TESTS() : run_suite_as_rank(place_of(place));
}

}  // namespace
}  // namespace armillary::comm

int main(int argc, char** argv) {
  try {
    return armillary::comm::run_program(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
