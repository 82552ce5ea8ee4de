// faults.h: a rank that fails while large messages are under way, for every engine of processes.
// The test programs start themselves with --fault=KIND, and look at the ends of the processes.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// The fault itself:
///
///   throw   rank 1 throws        abort   another thread of rank 1 aborts while it computes
///   exit    rank 1 exits with 3  leave   rank 1 ends well, while others wait for it
///   kill    SIGKILL ends rank 1  stop    SIGSTOP stops rank 1
inline void strike(std::string_view kind, Communicator& comm) {
  if (kind == "throw") throw std::runtime_error("the disk is full");
  if (kind == "exit") std::_Exit(3);
  if (kind == "kill") raise(SIGKILL);
  if (kind == "stop") raise(SIGSTOP);
  if (kind == "abort") {
    std::thread([&] { comm.abort("the watchdog barked"); }).join();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  }
}

/// The body of each rank: large messages go round a ring, and the fault strikes rank 1 in repeat
/// 20, while its peers wait. The deadline of a wait is a second.
inline void ring_with_fault(std::string_view kind, Communicator& comm) {
  std::vector<int> out(300000, comm.rank());
  std::vector<int> in(300000);
  const Strided out_part = whole(std::span(out));
  const Strided in_part = whole(std::span(in));
  const int P = comm.world();
  comm.set_timeout(1);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const bool is_struck = repeat == 20 && comm.rank() == 1;
    const Request request = comm.isend((comm.rank() + 1) % P, 1, {&out_part, 1});
    const Request came = comm.irecv((comm.rank() + P - 1) % P, 1, {&in_part, 1});
    if (is_struck) strike(kind, comm);
    comm.wait(came);
    comm.wait(request);
    if (is_struck && kind == "leave") return;
  }
}

/// Runs a rank, prints its error, and returns the exit code of its process: 4 if it threw.
inline int exit_code_of_rank(const std::function<void()>& rank) {
  try {
    rank();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 4;
  }
  return 0;
}

}  // namespace armillary::comm
