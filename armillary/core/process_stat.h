// process_stat.h: what the system tells of this machine and its processes, and the memory that this
// one returns to it. Linux alone: elsewhere no process is known.
#pragma once

#include <cstdint>
#include <string>

namespace armillary {

/// Two fields of /proc/PID/stat.
struct ProcessStat {
  char state = 'X';         ///< As in ps: 'R' runs, 'S' sleeps, 'T' and 't' are stopped, 'Z' ended.
  std::int64_t start = -1;  ///< In clock ticks since the machine was started; -1: no such process.

  /// By a signal (SIGSTOP), or by a debugger.
  bool stopped() const { return state == 'T' || state == 't'; }
};

/// The process with that pid. Cost: about 10 us.
ProcessStat stat_of_process(std::int64_t pid);

/// Seconds since this process was started, also if another program has become this one.
double age_of_process_s();

/// Name of this machine, as gethostname() has it; "unknown" if it has none.
std::string this_host();

/// Peak resident memory of this process so far, in bytes. Ranks that are its threads share it.
std::int64_t peak_resident_bytes();

/// From now on blocks of 1 MiB and more go back to the system when they are freed. Without it glibc
/// keeps those of up to 32 MiB, once one was freed, in a heap whose holes other sizes do not fill.
void return_large_blocks();

/// Physical memory of this machine, in bytes.
std::int64_t physical_memory_bytes();

}  // namespace armillary
