// engine.cpp: flags, the launcher's environment and this build decide on the engine; a body then
// runs the same on each.
#include "cli/torch/engine.h"

#include <cstdlib>

#include "armillary/comm/c10d.h"
#include "armillary/comm/local.h"
#include "armillary/comm/mpi.h"
#include "cli/program.h"

namespace armillary::cli {
namespace {

/// The interface that PyTorch's users name for Gloo; empty if they do not.
std::string gloo_interface() {
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  return interface == nullptr ? "" : interface;
}

}  // namespace

void add_engine_flags(CLI::App& verb, launch::EngineFlags& flags) {
  constexpr const char* kGroup = "Ranks";
  const auto add = [&](const char* name, std::string& value, const char* help) {
    verb.add_option(name, value, help)->option_text(" ")->group(kGroup);
  };
  add("--engine", flags.engine,
      "threads, mpi, c10d, or auto: as the launcher of this process meets [auto]");
  add("--rank", flags.rank, "Of this process, for c10d without a launcher");
  add("--master", flags.master, "HOST:PORT of rank 0, likewise");
}

launch::EngineChoice choose_engine(const launch::EngineFlags& flags,
                                   const launch::AskedWorld& request) {
  return launch::choose_engine(flags, launch::find_place(), comm::mpi_available(), request);
}

void run_ranks_on(const launch::EngineChoice& choice, int world, double timeout_s,
                  const std::function<void(comm::Communicator&)>& body) {
  const auto meet = [&](comm::Communicator& comm) {
    note_meeting();
    body(comm);
  };
  switch (choice.engine) {
    case launch::Engine::Threads:
      return comm::run_ranks(world, meet, {.timeout_s = timeout_s});
    case launch::Engine::Mpi:
      return comm::run_mpi_rank(meet, {.timeout_s = timeout_s, .lanes = 32, .world = world});
    case launch::Engine::C10d:
      return comm::run_c10d_rank(
          meet,
          {.rank = choice.place->rank,
           .world = world,
           .host = choice.place->address,
           .port = choice.place->port,
           .listen_fd = choice.place->listen_fd},
          {.timeout_s = timeout_s, .lanes = 32, .interface = gloo_interface()});
  }
}

}  // namespace armillary::cli
