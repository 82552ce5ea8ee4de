#include "armillary/core/process_stat.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace armillary {

/// The name of the program, in parentheses, may hold anything; the state follows the last ')'.
ProcessStat stat_of_process(std::int64_t pid) {
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

}  // namespace armillary
