// Command lines of the launchers of MPI. Options and variables differ by family, which is read from
// the launcher's --version.
#include "armillary/host/launch/mpirun.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/host/launch/launch_folder.h"

namespace armillary::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// The program `launcher --version`.
Child start_version(const std::string& launcher) {
  try {
    return start_child({.label = "mpirun", .words = {launcher, "--version"}});
  } catch (const Error& error) {  // "launch: PROGRAM cannot be started: .."
    throw InvalidArgument(error.what());
  }
}

/// The text that it prints, on both streams. It is killed at the end, if it is still there.
std::string version_text(const std::string& launcher, double deadline_s) {
  Child child = start_version(launcher);
  const auto end = Clock::now() + std::chrono::duration<double>(deadline_s);
  std::string text;
  while ((child.out.open() || child.err.open()) && Clock::now() < end) {
    std::array<pollfd, 2> sources{{{child.out.get(), POLLIN, 0}, {child.err.get(), POLLIN, 0}}};
    poll(sources.data(), sources.size(), 100);  // ms
    for (Descriptor* const stream : {&child.out, &child.err}) read_some(*stream, text);
  }
  const bool late = child.out.open() || child.err.open();
  ::kill(-child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  if (late) {
    fail<InvalidArgument>(
        "launch: {} --version has not ended after {:g} s; the launcher of Open MPI, MPICH or Intel "
        "MPI is required",
        excerpt(launcher), deadline_s);
  }
  return text;
}

}  // namespace

std::string mpi_launcher() {
  const char* const program = std::getenv("ARMILLARY_MPIEXEC");
  return program != nullptr && *program != '\0' ? program : ARMILLARY_BUILD_MPIEXEC;
}

MpiFamily family_of(const std::string& launcher, double deadline_s) {
  const std::string text = version_text(launcher, deadline_s);
  if (text.find("Open MPI") != std::string::npos || text.find("OpenRTE") != std::string::npos) {
    return MpiFamily::OpenMpi;
  }
  if (text.find("HYDRA") != std::string::npos || text.find("Intel(R) MPI") != std::string::npos) {
    return MpiFamily::Mpich;
  }
  fail<InvalidArgument>(
      "launch: {} --version says '{}'; the launcher of Open MPI, MPICH or Intel MPI is required",
      excerpt(launcher), excerpt(text.substr(0, text.find('\n'))));
}

ChildCommand mpi_command(const std::string& launcher, MpiFamily family, int processes,
                         const std::vector<std::string>& words, const std::string& folder) {
  ChildCommand command{.label = "mpirun",
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
