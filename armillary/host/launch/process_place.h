// process_place.h: the place of this process among the processes of a run, as its launcher tells it
// in environment variables.
//
//   launcher                        variables                                             engine
//   armillary launch, torchrun      RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,       c10d
//                                   MASTER_ADDR, MASTER_PORT
//   Slurm's srun                    SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,            mpi
//                                   SLURM_STEP_TASKS_PER_NODE with SLURM_NODEID; only
//                                   with SLURM_STEP_ID, which a script of sbatch has not
//   Open MPI's mpirun               OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE  mpi
//   MPICH's mpiexec                 PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS  mpi
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace armillary::launch {

/// One process of a run.
struct ProcessPlace {
  int rank = 0;
  int world = 1;
  int local_rank = 0;   ///< Number among the processes of this host.
  int local_world = 1;  ///< Processes of the run on this host; `world` if the launcher is silent.
  /// Meeting point of c10d: host and port of rank 0. Empty and 0 if the launcher names none.
  std::string address;
  int port = 0;
  /// For rank 0: a socket that listens on the port, if the launcher has opened one; else -1.
  int listen_fd = -1;
  std::string_view launcher;  ///< As in error texts: "torchrun", "Slurm", "Open MPI", "PMI".
  std::string_view engine;    ///< "c10d" or "mpi": the engine that such processes meet by.
  /// A launcher whose processes may meet by MPI has set its variables, this one or another.
  bool has_mpi = false;
};

/// Value of an environment variable, or null.
using Lookup = std::function<const char*(const char* name)>;

/// The place that the variables tell, or nothing if no launcher started this process.
///
/// Slurm starts other launchers: its variables count only if no launcher below it set its own.
/// @throws InvalidArgument if a variable is no number in its range, if one of a set is missing, or
/// if two launchers disagree about rank or world; the text names both.
std::optional<ProcessPlace> find_place(const Lookup& lookup);

/// The same from the environment of this process.
std::optional<ProcessPlace> find_place();

/// Whether a launcher, or the MPI library under it, tells a process its place in a run by the
/// variable of this name. Settings that users make, such as OMPI_MCA_btl_tcp_if_include, are none.
/// A program that is started beside a run must not inherit such variables.
bool is_place_variable(std::string_view name);

/// The environment of this process without them, as "NAME=value".
std::vector<std::string> environment_without_place();

}  // namespace armillary::launch
