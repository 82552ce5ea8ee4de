// The choice has two steps: which place counts (flags before launchers), and which engine
// (named, or the one of the launcher, or threads). Each refusal says what would be accepted.
#include "armillary/host/launch/engine.h"

#include <charconv>
#include <climits>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::launch {
namespace {

/// A number that fills the whole text and lies in the range; else the flag is refused by name.
int whole_number(std::string_view flag, std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    fail<InvalidArgument>("{} is {}; a whole number from {} to {} is required", flag, quote(text),
                          least, most);
  }
  return value;
}

/// The address of "[::1]", a host as it is, or nothing if brackets do not match.
std::string without_brackets(const std::string& host) {
  if (host.find_first_of("[]") == std::string::npos) return host;
  const bool match = host.size() > 2 && host.front() == '[' && host.find(']') == host.size() - 1 &&
                     host.rfind('[') == 0;
  return match ? host.substr(1, host.size() - 2) : "";
}

/// The place that flags give, in a run of `world` ranks.
std::optional<ProcessPlace> place_of(const EngineFlags& flags, int world) {
  if (flags.rank.empty() && flags.master.empty()) return {};
  if (flags.rank.empty() || flags.master.empty()) {
    fail<InvalidArgument>("--rank {}, --master {}; both are required, or none",
                          flags.rank.empty() ? "not given" : quote(flags.rank),
                          flags.master.empty() ? "not given" : quote(flags.master));
  }
  // Flags know of no hosts: all ranks count as being on one.
  ProcessPlace place{.world = world, .local_world = world, .launcher = "flags", .engine = "c10d"};
  place.rank = whole_number("--rank", flags.rank, 0, world - 1);
  place.local_rank = place.rank;
  // The last colon: an IPv6 address has some of its own, in brackets or not.
  const std::size_t colon = flags.master.rfind(':');
  if (colon != std::string::npos) place.address = without_brackets(flags.master.substr(0, colon));
  if (place.address.empty()) {
    fail<InvalidArgument>("--master is {}; HOST:PORT or [ADDRESS]:PORT is required",
                          quote(flags.master));
  }
  place.port = whole_number("port of --master", flags.master.substr(colon + 1), 1, 65535);
  return place;
}

/// The end of a text about processes that nobody started.
constexpr std::string_view kHowToStart =
    "`armillary launch -n 4 -- VERB ..`, mpirun, srun or torchrun starts them";

Engine parse_engine(const std::string& name) {
  for (const Engine engine : {Engine::Threads, Engine::Mpi, Engine::C10d}) {
    if (name == name_of(engine)) return engine;
  }
  if (name == "nccl") {
    fail<InvalidArgument>(
        "--engine nccl carries what lies on GPUs, and this program computes on CPUs; mpi or c10d "
        "is required, or a program of yours that calls comm::run_on_nccl (docs/processes.md)");
  }
  const std::vector<std::string> names{"auto", "threads", "mpi", "c10d"};
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("--engine {}; {} is required{}", name, list_names(names),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

/// The engine of a process that has this place, if none was named.
Engine engine_of(const std::optional<ProcessPlace>& place, bool has_mpi) {
  if (!place) return Engine::Threads;
  // srun starts processes for any engine.
  if (place->launcher == "Slurm" && !has_mpi) return Engine::C10d;
  return place->engine == "mpi" ? Engine::Mpi : Engine::C10d;
}

}  // namespace

std::string_view name_of(Engine engine) {
  switch (engine) {
    case Engine::Threads:
      return "threads";
    case Engine::Mpi:
      return "mpi";
    case Engine::C10d:
      return "c10d";
  }
  return "";
}

EngineChoice choose_engine(const EngineFlags& flags, const std::optional<ProcessPlace>& result,
                           bool has_mpi, const AskedWorld& request) {
  const std::optional<ProcessPlace> by_flags = place_of(flags, request.world);
  const std::optional<ProcessPlace>& place = by_flags ? by_flags : result;
  const Engine engine =
      flags.engine == "auto" ? engine_of(place, has_mpi) : parse_engine(flags.engine);

  // Threads: one process does the whole run, so several of them would do it several times.
  if (engine == Engine::Threads) {
    if (place && place->world > 1) {
      fail<InvalidArgument>(
          "--engine threads in rank {} of {} that {} started, each of which would do the whole "
          "run; "
          "--engine {} is required, or one process",
          place->rank, place->world, place->launcher, place->engine);
    }
    return {};
  }
  if (!place) {
    fail<InvalidArgument>("--engine {} in a process that no launcher started; {}", name_of(engine),
                          kHowToStart);
  }
  // Processes: each engine needs its own kind of launcher, or its own meeting point.
  if (engine == Engine::Mpi) {
    if (by_flags) {
      fail<InvalidArgument>(
          "--rank and --master with --engine mpi; c10d is required, or "
          "mpirun without these flags");
    }
    if (!has_mpi) {
      fail<InvalidArgument>(
          "--engine mpi in a build without MPI; one that found Open MPI or MPICH is required "
          "(./dev setup mpi), or --engine c10d");
    }
    if (!place->has_mpi) {
      fail<InvalidArgument>(
          "--engine mpi in a process that {} started; mpirun or srun is required, or --engine c10d",
          place->launcher);
    }
  } else if (place->address.empty() || place->port == 0) {
    fail<InvalidArgument>(
        "--engine c10d without a meeting point: {} sets no MASTER_ADDR and MASTER_PORT; both are "
        "required, or --rank and --master HOST:PORT",
        place->launcher);
  }
  // Last, the sizes: the recipe or the flags ask for one world, the launcher started another.
  if (place->world != request.world) {
    fail<InvalidArgument>("{} that {} started, and {}; equal numbers are required; nearest: -n {}",
                          count_of(place->world, "process", "processes"), place->launcher,
                          request.where, request.world);
  }
  return {.engine = engine, .place = place};
}

}  // namespace armillary::launch
