// engine.h: the choice of an engine: what the ranks of a run are, and how they meet.
//
//   threads   ranks are threads of this process
//   mpi       ranks are processes that mpirun, srun or `armillary launch` started
//   c10d      ranks are processes that meet at a host and port, by torch.distributed's Gloo
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "armillary/host/launch/process_place.h"

namespace armillary::launch {

enum class Engine { Threads, Mpi, C10d };

std::string_view name_of(Engine engine);

/// The command line of a verb that runs ranks. Empty texts were not given.
struct EngineFlags {
  std::string engine = "auto";  ///< "auto", "threads", "mpi" or "c10d".
  // The place by hand, for c10d: both or none.
  std::string rank;
  std::string master;  ///< "HOST:PORT" of rank 0.
};

/// The engine of a run, and the place of this process in it.
struct EngineChoice {
  Engine engine = Engine::Threads;
  /// The place of this process; not set for threads.
  std::optional<ProcessPlace> place;

  /// Whether this process writes files and tables of the run.
  bool is_first() const { return !place || place->rank == 0; }
  /// Ranks on this host, of a run with so many ranks.
  int local_world(int world) const { return place ? place->local_world : world; }
};

/// A run of `world` ranks, as `where` asks for: "parallelism.context_parallel_degree = 4".
struct AskedWorld {
  int world = 1;
  std::string where;
};

/// Chooses by flags, or else by the launcher that started this process, or else threads.
/// `has_mpi`: this build has MPI.
///
/// Processes that a launcher started never run threads instead: each would do the whole run.
/// @throws InvalidArgument for an engine that is unknown or not in this build, for flags that do
/// not belong to the engine or are no numbers, for processes without a launcher or without a
/// meeting point, and if the processes are not as many as the ranks. The text says how such a run
/// is started.
EngineChoice choose_engine(const EngineFlags& flags, const std::optional<ProcessPlace>& place,
                           bool has_mpi, const AskedWorld& request);

}  // namespace armillary::launch
