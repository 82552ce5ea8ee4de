// mpirun.h: the command that starts processes by the MPI that this build is linked with.
#pragma once

#include <string>
#include <vector>

#include "armillary/core/child.h"

namespace armillary::launch {

/// Path of mpirun or mpiexec of this build's MPI, or empty if it has none. The environment variable
/// ARMILLARY_MPIEXEC names another.
std::string mpi_launcher();

/// Families of MPI libraries, whose launchers have different flags.
enum class MpiFamily { OpenMpi, Mpich };

/// The family that `launcher --version` tells. @throws InvalidArgument if it cannot be started, has
/// not ended after so many seconds, or is neither.
MpiFamily family_of(const std::string& launcher, double deadline_s = 20);

/// The command "launcher -n N words..". Open MPI puts its segments and files into `folder`
/// (launch_folder.h). Ranks may be more than cores, are not bound to single cores (each computes
/// with several threads), and may run as root, as in containers: Open MPI refuses both by default,
/// and whoever asks for N ranks has decided. The command ends its processes if it gets SIGTERM; how
/// they are asked to stop is in launch_folder.h.
ChildCommand mpi_command(const std::string& launcher, MpiFamily family, int processes,
                         const std::vector<std::string>& words, const std::string& folder);

}  // namespace armillary::launch
