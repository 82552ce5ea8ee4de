// The verb `calibrate`: measures the machine it runs on and writes a cluster file for `simulate`.
// Ranks are threads, or processes of which this is one; rank 0 writes and prints.
#include "armillary/lab/calibrate/calibrate.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/lab/bench/process_ranks.h"
#include "armillary/lab/bench/thread_ranks.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/torch/engine.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kCalibrateNotes = R"(
Nothing else should run meanwhile. All ranks are measured together: start as many, on the same hosts
and with the same engine, as the runs that are to be predicted.

Examples:
  armillary calibrate --world 2 --out here.toml
  armillary simulate --cluster here.toml --world 2 --dtype fp32 --layout zigzag
  armillary launch -n 2 -- calibrate --world 2 --out processes.toml
  mpirun -n 8 --hostfile hosts armillary calibrate --world 8 --ranks-per-node 4 --out hosts.toml

Exit code: 0 done, 1 a rank failed, 2 bad input.)";

struct CalibrateFlags {
  std::string out;
  std::string name = "calibrated";
  std::string world = "2";
  std::string ranks_per_node;
  std::string cores;
  std::vector<std::string> dtypes;
  std::vector<std::string> head_dims;
  std::string heads = "4";
  std::string tokens = "4096";
  launch::EngineFlags engine;
};

/// The case of the flags, but for the engine.
calibrate::CalibrateCase case_of(const CalibrateFlags& flags, int local_world) {
  calibrate::CalibrateCase spec{.name = flags.name,
                                .world = parse_count("--world", flags.world),
                                .heads = parse_count("--heads", flags.heads),
                                .most_tokens = parse_count("--tokens", flags.tokens)};
  spec.ranks_per_node = flags.ranks_per_node.empty()
                            ? local_world
                            : parse_count("--ranks-per-node", flags.ranks_per_node);
  if (!flags.cores.empty()) spec.cores = parse_count("--cores", flags.cores);
  if (!flags.dtypes.empty()) spec.dtypes.clear();
  for (const std::string& dtype : flags.dtypes) spec.dtypes.push_back(plan::parse_dtype(dtype));
  if (!flags.head_dims.empty()) spec.head_dims.clear();
  for (const std::string& dim : flags.head_dims) {
    spec.head_dims.push_back(parse_count("--head-dim", dim));
  }
  return spec;
}

std::string file_of(const sim::Cluster& cluster) {
  return "# Written by `armillary calibrate`; docs/simulation.md describes the keys.\n" +
         sim::to_toml(cluster);
}

/// Measures on the ranks that there are; the first of them writes.
void measure(const calibrate::CalibrateCase& spec, const bench::MakeRanks& make_ranks,
             const std::string& path, bool writes) {
  if (writes && !path.empty()) check_writable("calibrate", path);
  const sim::Cluster cluster = calibrate::calibrate(spec, make_ranks, [&](const std::string& part) {
    if (writes) fmt::print(stderr, "calibrate: {}\n", part);
  });
  if (!writes) return;
  if (path.empty()) {
    fmt::print("{}", sim::to_toml(cluster));
  } else {
    write_file("calibrate", path, file_of(cluster));
    fmt::print("calibrate: {}: {} of {}\n", path, count_of(spec.world, "rank"), spec.engine);
  }
}

void run_calibrate(const CalibrateFlags& flags) {
  const int world = parse_count("--world", flags.world);
  const launch::EngineChoice choice =
      choose_engine(flags.engine, {world, fmt::format("--world {}", world)});
  calibrate::CalibrateCase spec = case_of(flags, choice.local_world(world));
  spec.engine = launch::name_of(choice.engine);
  if (choice.engine == launch::Engine::Threads) {
    return measure(spec, bench::make_thread_ranks, flags.out, true);
  }
  constexpr double kTimeoutSeconds = 600;
  run_ranks_on(choice, world, kTimeoutSeconds, [&](comm::Communicator& comm) {
    bench::Processes processes(comm);
    const auto make_ranks = [&](int of, int owner) { return processes.make_ranks(of, owner); };
    measure(spec, make_ranks, flags.out, comm.rank() == 0);
  });
}

}  // namespace

void add_calibrate(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* verb = app.add_subcommand("calibrate", kCalibrateDescription);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return verb->add_option(name, value, help)->option_text(" ")->check(not_empty());
  };
  add("--out", flags->out, "File to write [standard output]");
  add("--name", flags->name, "Name of the cluster [calibrated]");
  add("--world", flags->world, "Ranks: threads, or processes as --engine says [2]");
  add("--ranks-per-node", flags->ranks_per_node, "Ranks of a host [those of this one]");
  add("--cores", flags->cores, "Cores that all ranks share [those of each host]");
  add("--dtype", flags->dtypes, "fp32, bf16 or fp16; several times too [fp32 bf16]")
      ->expected(1)
      ->take_all();
  add("--head-dim", flags->head_dims, "Dim of a head; several times too [64 128]")
      ->expected(1)
      ->take_all();
  add("--heads", flags->heads, "Heads of a kernel call [4]");
  add("--tokens", flags->tokens, "Tokens of the largest block [4096]");
  add_engine_flags(*verb, flags->engine);
  verb->footer(kCalibrateNotes);
  verb->callback([flags, &exit_code] {
    run_calibrate(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
