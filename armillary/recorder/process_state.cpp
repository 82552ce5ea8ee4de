// Two fields of /proc/PID/stat: the state, and the start, which no later process of that pid has.
#include "armillary/recorder/process_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

namespace armillary::recorder {
namespace {

/// The fields of /proc/PID/stat that are needed here.
struct ProcessStat {
  char state = 'X';
  std::int64_t start = -1;
};

/// The name of the program, in parentheses, may hold anything; the state follows the last ')'.
ProcessStat stat_of(std::int64_t pid) {
  constexpr int kStartField = 19;  // counted from the state, which is field 0
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ProcessStat stat;
  if (text.rfind(')') == std::string::npos) return stat;
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  fields >> stat.state;
  std::string field;
  for (int i = 1; i < kStartField; ++i) fields >> field;
  if (!(fields >> stat.start)) stat.start = -1;
  return stat;
}

}  // namespace

std::string this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::int64_t process_start_of(std::int64_t pid) {
  return stat_of(pid).start;
}

ProcessState state_of(const std::string& host, std::int64_t pid, std::int64_t process_start) {
  if (host != this_host()) return ProcessState::Unknown;
  const ProcessStat stat = stat_of(pid);
  // Another start: the pid was given to a new process, and the one asked for is gone.
  if (stat.start != process_start || stat.state == 'Z' || stat.state == 'X') {
    return ProcessState::Gone;
  }
  return stat.state == 'T' || stat.state == 't' ? ProcessState::Stopped : ProcessState::Alive;
}

}  // namespace armillary::recorder
