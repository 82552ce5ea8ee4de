// host_facts.h: the machine as ranks meet it: cores, memory, shared memory, limits, clock.
#pragma once

#include <cstdint>
#include <string>

namespace armillary::doctor {

/// Sizes are bytes. A limit of -1 is none; any other -1 is a number that the system did not tell.
struct HostFacts {
  std::string host;
  std::string system;        ///< "Linux 6.1.0 x86_64"
  std::string cpu;           ///< "Intel(R) Xeon(R) ..": empty if the system does not tell.
  int cores = 0;             ///< That this process may use.
  std::int64_t memory = -1;  ///< Physical.
  std::int64_t memory_available = -1;  ///< Free, or freed when it is needed.
  /// The limit of the container (control group) that this process is in.
  std::int64_t memory_limit = -1;
  // Shared memory: ranks of one machine exchange messages through files there.
  std::int64_t shared_memory = -1;
  std::int64_t shared_memory_free = -1;
  std::int64_t locked_memory_limit = -1;  ///< Network cards with RDMA need locked memory.
  std::int64_t open_files_limit = -1;     ///< A number, not bytes. Each peer takes some.
  // The clock that times and deadlines are taken from.
  double clock_tick_ns = 0;         ///< The smallest difference of two looks.
  double clock_look_ns = 0;         ///< Cost of a look.
  bool clock_synchronized = false;  ///< By the system's word: the wall clock follows a reference.
};

/// Facts about this machine, in a few milliseconds.
HostFacts host_facts();

/// "23.4 GiB", "none" for -1.
std::string size_text(std::int64_t bytes);

}  // namespace armillary::doctor
