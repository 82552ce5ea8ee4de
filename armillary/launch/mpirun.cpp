// Command lines of the launchers of MPI. Options and variables differ by family, which is read from
// the launcher's --version.
#include "armillary/launch/mpirun.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "armillary/core/error.h"
#include "armillary/launch/launch_folder.h"

namespace armillary::launch {
std::string mpi_launcher() {
  const char* const named = std::getenv("ARMILLARY_MPIEXEC");
  return named != nullptr && *named != '\0' ? named : ARMILLARY_BUILD_MPIEXEC;
}

MpiFamily family_of(const std::string& launcher) {
  // The path is quoted for the shell; it comes from the build or from the user's own environment.
  std::string quoted = "'";
  for (const char c : launcher) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* const pipe = popen((quoted + "' --version 2>&1").c_str(), "r");
  if (pipe == nullptr) fail<InvalidArgument>("launch: {} cannot be started", launcher);
  std::string text;
  std::array<char, 4096> buffer;
  while (const std::size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), size);
  }
  pclose(pipe);
  if (text.find("Open MPI") != std::string::npos || text.find("OpenRTE") != std::string::npos) {
    return MpiFamily::OpenMpi;
  }
  if (text.find("HYDRA") != std::string::npos || text.find("Intel(R) MPI") != std::string::npos) {
    return MpiFamily::Mpich;
  }
  fail<InvalidArgument>(
      "launch: {} --version says '{}'; the launcher of Open MPI, MPICH or Intel MPI is required",
      launcher, text.substr(0, text.find('\n')));
}

Command mpi_command(const std::string& launcher, MpiFamily family, int processes,
                    const std::vector<std::string>& words, const std::string& folder) {
  Command command{.label = "mpirun",
                  .words = {launcher, "-n", std::to_string(processes)},
                  .takes_input = true,
                  .orphan_signal = SIGTERM};
  if (family == MpiFamily::OpenMpi) {
    // Texts of Open MPI about processes that failed would hide ours.
    for (const char* flag : {"--quiet", "--bind-to", "none"}) command.words.emplace_back(flag);
    // More ranks than cores, and root as in a container, are legal here; its default refuses them.
    command.variables = {{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                         {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                         {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
    // Names of the same variables in Open MPI 4 and 5.
    for (const char* name :
         {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory",
          "OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"}) {
      command.variables.emplace_back(name, folder);
    }
  }
  command.variables.emplace_back(kLaunchFolderVariable, folder);
  command.words.insert(command.words.end(), words.begin(), words.end());
  return command;
}

}  // namespace armillary::launch
