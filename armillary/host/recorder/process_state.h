// process_state.h: whether a process of this machine still runs. It reads /proc, so on other
// systems than Linux every process is gone.
#pragma once

#include <cstdint>
#include <string>

namespace armillary::recorder {

/// Answer of state_of(), as /proc has it at that moment.
enum class ProcessState : std::uint8_t {
  Alive,    ///< Running or sleeping.
  Stopped,  ///< By a signal (SIGSTOP), or by a debugger.
  Gone,     ///< Ended, or a zombie that nobody has waited for.
  Unknown,  ///< On another host.
};

/// Start of a process in clock ticks since the machine was started, which tells processes apart
/// that have the same pid one after the other; -1 if there is no such process.
std::int64_t process_start_of(std::int64_t pid);

/// State of the process with that pid that started then on `host`.
ProcessState state_of(const std::string& host, std::int64_t pid, std::int64_t process_start);

}  // namespace armillary::recorder
