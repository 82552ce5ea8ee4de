#include "armillary/host/recorder/process_state.h"

#include "armillary/core/process_stat.h"

namespace armillary::recorder {

std::int64_t process_start_of(std::int64_t pid) {
  return stat_of_process(pid).start;
}

ProcessState state_of(const std::string& host, std::int64_t pid, std::int64_t process_start) {
  if (host != this_host()) return ProcessState::Unknown;
  const ProcessStat stat = stat_of_process(pid);
  // Another start: the pid was given to a new process, and the one asked for is gone.
  if (stat.start != process_start || stat.state == 'Z' || stat.state == 'X') {
    return ProcessState::Gone;
  }
  return stat.stopped() ? ProcessState::Stopped : ProcessState::Alive;
}

}  // namespace armillary::recorder
