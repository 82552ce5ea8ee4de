// The verb `doctor`: the machine, the networks and the engines as a run would find them, and the
// instruction sets of the kernels (cpu_sets.h). Facts first, then an attention layer on two ranks
// of each engine, in processes of their own.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "armillary/comm/mpi.h"
#include "armillary/comm/nccl.h"
#include "armillary/host/doctor/host_facts.h"
#include "armillary/host/doctor/networks.h"
#include "armillary/host/doctor/trial.h"
#include "armillary/proof/digest.h"
#include "cli/torch/cpu_sets.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kDoctorNotes =
    "An engine is tested by an attention layer on two ranks of this machine, which takes about 2 "
    "s;\n"
    "--quick leaves that out. Networks are those that the engine would take between machines.\n"
    "Rates are the peak of one thread in GFLOP/s, probed for a millisecond. A set is taken by "
    "them:\n"
    "pairs of bf16 are faster than fp32 on some CPUs, slower on others.\n"
    "ARMILLARY_ISA=amx|avx512_bf16|avx512|avx2|portable forces a set for all dtypes.\n"
    "\nExamples:\n"
    "  armillary doctor\n"
    "  armillary doctor --quick --json\n"
    "  ARMILLARY_ISA=avx2 armillary doctor\n"
    "\nExit code: 0 done, 1 an engine that is there does not work, 2 ARMILLARY_ISA names no set "
    "that "
    "runs here.";

/// Seconds of the test of one engine; it takes about 2, on a busy machine more.
constexpr double kTestLimit = 30;

using Json = nlohmann::ordered_json;

const char* variable(const char* name) {
  return std::getenv(name);
}

/// An engine, and why it cannot be used; or how its test went.
struct EngineStatus {
  std::string name;
  std::string missing;
  bool tested = false;
  doctor::Trial test;

  bool is_broken() const { return tested && !test.works; }
};

/// All engines; those with processes or threads of this machine are tested if `tests`.
std::vector<EngineStatus> engine_statuses(bool tests) {
  std::string no_nccl = comm::nccl_missing();
  if (no_nccl.starts_with("nccl: ")) no_nccl.erase(0, 6);
  std::vector<EngineStatus> all{{"threads"}, {"mpi"}, {"c10d"}, {"nccl", no_nccl}};
  if (!comm::mpi_available()) {
    all[1].missing = "this build has no MPI; ./dev setup mpi, then ./dev build";
  }
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "armillary").string();
  for (EngineStatus& engine : all) {
    // No verb runs on NCCL yet.
    engine.tested = tests && engine.missing.empty() && engine.name != "nccl";
    if (!engine.tested) continue;
    engine.test = std::filesystem::exists(program, error)
                      ? doctor::run_trial(doctor::trial_command(program, engine.name), kTestLimit)
                      : doctor::Trial{.reason = program + " is not there"};
  }
  return all;
}

std::string text_of(const EngineStatus& engine) {
  if (!engine.missing.empty()) return "missing: " + engine.missing;
  if (!engine.tested) return "there, not tested";
  if (!engine.test.works) return "does not work: " + engine.test.reason;
  return fmt::format("works: a layer on 2 ranks has an error of {:.1e}; {:.1f} s",
                     engine.test.max_error, engine.test.seconds);
}

// Facts as rows.

/// The interfaces that each engine between machines would take.
struct EngineNetworks {
  std::vector<doctor::Network> all = doctor::networks();
  doctor::NetworkChoice mpi = doctor::mpi_networks(all, variable);
  doctor::NetworkChoice gloo;

  explicit EngineNetworks(const std::string& host)
      : gloo(doctor::gloo_network(all, {host, doctor::addresses_of(host)}, variable)) {}
};

std::string text_of(const doctor::NetworkChoice& choice) {
  return fmt::format("{} ({}){}",
                     choice.names.empty() ? "none" : fmt::to_string(fmt::join(choice.names, ", ")),
                     choice.why, choice.problem.empty() ? "" : "; " + choice.problem);
}

/// A line with its name in a column.
void print_row(const std::string& name, const std::string& text) {
  fmt::print("{:<14}{}\n", name, text);
}

/// Rows that are the same for all engines.
void print_host(const doctor::HostFacts& host) {
  print_row("versions",
            fmt::format("armillary {}, torch {}, {}, compiler {}", proof::version(), TORCH_VERSION,
                        comm::mpi_available() ? comm::mpi_version() : "no MPI", __VERSION__));
  print_row("machine", fmt::format("{}, {}, {}, cores: {}", host.host, host.system,
                                   host.cpu.empty() ? "unknown CPU" : host.cpu, host.cores));
  print_row(
      "memory",
      fmt::format("{}, available {}, limit of the container {}", doctor::size_text(host.memory),
                  doctor::size_text(host.memory_available), doctor::size_text(host.memory_limit)));
  print_row(
      "shared memory",
      fmt::format("/dev/shm {}, free {}; limits: locked memory {}, open files {}",
                  doctor::size_text(host.shared_memory), doctor::size_text(host.shared_memory_free),
                  doctor::size_text(host.locked_memory_limit), host.open_files_limit));
  print_row("clock", fmt::format("tick {:.0f} ns, a look {:.0f} ns, wall clock {}",
                                 host.clock_tick_ns, host.clock_look_ns,
                                 host.clock_synchronized
                                     ? "synchronized"
                                     : "not synchronized: times of hosts cannot be compared"));
}

void print_networks(const EngineNetworks& networks) {
  for (const doctor::Network& one : networks.all) {
    print_row("network", fmt::format("{}: {}{}", one.name, one.is_up ? "up" : "down",
                                     one.addresses.empty()
                                         ? ", no address"
                                         : fmt::format(", {}", fmt::join(one.addresses, ", "))));
  }
  print_row("mpi takes", text_of(networks.mpi));
  print_row("c10d takes", text_of(networks.gloo));
}

// The same facts as JSON: numbers without units are bytes, times have theirs in their name.

Json json_of(const doctor::HostFacts& host) {
  return {{"host", host.host},
          {"system", host.system},
          {"cpu", host.cpu},
          {"cores", host.cores},
          {"memory_bytes", host.memory},
          {"memory_available_bytes", host.memory_available},
          {"memory_limit_bytes", host.memory_limit},
          {"shared_memory_bytes", host.shared_memory},
          {"shared_memory_free_bytes", host.shared_memory_free},
          {"locked_memory_limit_bytes", host.locked_memory_limit},
          {"open_files_limit", host.open_files_limit},
          {"clock_tick_ns", host.clock_tick_ns},
          {"clock_look_ns", host.clock_look_ns},
          {"clock_synchronized", host.clock_synchronized}};
}

Json json_of(const doctor::NetworkChoice& choice) {
  return {{"takes", choice.names}, {"why", choice.why}, {"problem", choice.problem}};
}

Json json_of(const EngineNetworks& networks) {
  Json all = Json::array();
  for (const doctor::Network& one : networks.all) {
    all.push_back({{"name", one.name}, {"addresses", one.addresses}, {"up", one.is_up}});
  }
  return {
      {"all", std::move(all)}, {"mpi", json_of(networks.mpi)}, {"c10d", json_of(networks.gloo)}};
}

Json json_of(const EngineStatus& engine) {
  Json json{{"name", engine.name}, {"there", engine.missing.empty()}};
  if (!engine.missing.empty()) json["missing"] = engine.missing;
  json["tested"] = engine.tested;
  if (!engine.tested) return json;
  json["works"] = engine.test.works;
  json["seconds"] = engine.test.seconds;
  if (engine.test.works) json["max_error"] = engine.test.max_error;
  if (!engine.test.works) json["reason"] = engine.test.reason;
  return json;
}

/// Prints everything, and returns the exit code.
int run_doctor(bool json, bool quick) {
  Json report = cpu_sets_json();  // refuses a bad ARMILLARY_ISA before anything is printed
  const doctor::HostFacts host = doctor::host_facts();
  const EngineNetworks networks(host.host);
  // Tests take seconds: the facts are there before.
  if (!json) {
    print_cpu_sets();
    print_host(host);
    print_networks(networks);
    std::fflush(stdout);
  }
  const std::vector<EngineStatus> engines = engine_statuses(!quick);
  // An engine that is missing is a fact; one that is there and fails is a fault.
  int exit_code = kDone;
  Json statuses = Json::array();
  for (const EngineStatus& engine : engines) {
    if (!json) print_row(engine.name, text_of(engine));
    statuses.push_back(json_of(engine));
    if (engine.is_broken()) exit_code = kFailed;
  }
  if (!json) return exit_code;
  report["versions"] = {{"armillary", proof::version()},
                        {"torch", TORCH_VERSION},
                        {"mpi", comm::mpi_version()},
                        {"compiler", __VERSION__}};
  report["machine"] = json_of(host);
  report["networks"] = json_of(networks);
  report["engines"] = std::move(statuses);
  // Texts of other programs may be no UTF-8.
  fmt::print("{}\n", report.dump(-1, ' ', false, Json::error_handler_t::replace));
  return exit_code;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("doctor", kDoctorDescription);
  const auto json = std::make_shared<bool>(false);
  const auto quick = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "One JSON object");
  verb->add_flag("--quick", *quick, "Without the tests of engines");
  verb->footer(kDoctorNotes);
  verb->callback([json, quick, &exit_code] { exit_code = run_doctor(*json, *quick); });
}

}  // namespace armillary::cli
