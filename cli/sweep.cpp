// The verb `sweep`: simulated times over ranges of ranks, lengths, heads and bandwidths, as CSV.
// The work is in sweep/; bench/plots.py draws it.
#include "armillary/lab/sweep/sweep.h"

#include <fmt/format.h>

#include <memory>
#include <sstream>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of the verb. `world`, `seq` and `heads` are lists here.
struct SweepFlags : ProblemFlags {
  std::string cluster;
  std::string bandwidth = "1";
  std::vector<std::string> strategies;
  std::string csv;
  bool weak = false;
};

/// The parts of `1,2,8` ; `2..16` stands for 2,4,8,16.
std::vector<std::int64_t> parse_list(const std::string& flag, const std::string& text) {
  std::vector<std::int64_t> values;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dots = part.find("..");
    const std::int64_t first = parse_integer(flag, part.substr(0, dots), {1});
    const std::int64_t last =
        dots == std::string::npos ? first : parse_integer(flag, part.substr(dots + 2), {1});
    if (last < first) {
      fail<InvalidArgument>("{} is {}; a range that ascends is required", flag, quote(part));
    }
    // Half of the end is looked at, for the double of a value may not fit.
    for (std::int64_t value = first;; value *= 2) {
      values.push_back(value);
      if (value > last / 2) break;
    }
  }
  if (values.empty())
    fail<InvalidArgument>("{} is {}; a list of numbers is required", flag, quote(text));
  return values;
}

std::vector<int> parse_ints(const std::string& flag, const std::string& text) {
  std::vector<int> values;
  for (const std::int64_t value : parse_list(flag, text)) {
    values.push_back(parse_count(flag, std::to_string(value)));
  }
  return values;
}

/// Factors above zero, with commas between them.
std::vector<double> parse_factors(const std::string& flag, const std::string& text) {
  std::vector<double> values;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::size_t read = 0;
    double value = 0;
    try {
      value = std::stod(part, &read);
    } catch (const std::exception&) {
      read = 0;
    }
    if (read == 0 || read != part.size() || !(value > 0) || value > 1e6) {
      fail<InvalidArgument>("{} is {}; numbers above 0, at most 1e6, are required", flag,
                            quote(part));
    }
    values.push_back(value);
  }
  if (values.empty())
    fail<InvalidArgument>("{} is {}; a list of numbers is required", flag, quote(text));
  return values;
}

plan::Problem problem_at(ProblemFlags flags, const sweep::Point& point) {
  flags.world = std::to_string(point.world);
  flags.seq = std::to_string(point.seq);
  flags.heads = std::to_string(point.heads);
  return problem(flags);
}

/// The numbers of the problem that no range has.
std::vector<sweep::Constant> constants(const SweepFlags& flags, const sim::Cluster& cluster) {
  return {{"cluster", cluster.name},
          {"mask", flags.mask},
          {"layout", flags.layout},
          {"batch", flags.batch},
          {"head_dim", flags.head_dim},
          {"value_dim", flags.value_dim.empty() ? flags.head_dim : flags.value_dim},
          {"dtype", flags.dtype},
          {"wire", flags.wire}};
}

void run_sweep(const SweepFlags& flags) {
  sweep::SweepQuestion question{
      .points = sweep::points({.worlds = parse_ints("--world", flags.world),
                               .seqs = parse_list("--seq", flags.seq),
                               .heads = parse_ints("--heads", flags.heads),
                               .bandwidths = parse_factors("--bandwidth", flags.bandwidth),
                               .weak = flags.weak}),
      .problem = [&](const auto& point) { return problem_at(flags, point); },
      .cluster = sim::load_cluster(flags.cluster),
      .passes = passes(flags),
      .strategies = flags.strategies};
  if (!flags.csv.empty()) check_writable("sweep", flags.csv);
  const std::string csv =
      sweep::to_csv(sweep::sweep(question), question.passes, constants(flags, question.cluster));
  if (flags.csv.empty()) {
    fmt::print("{}", csv);
  } else {
    write_file("sweep", flags.csv, csv);
  }
}

}  // namespace

void add_sweep(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("sweep", "Simulated times over ranges, as CSV");
  auto flags = std::make_shared<SweepFlags>();
  flags->pass = "both";
  add_problem_flags(*verb, *flags);
  for (const char* name : {"--strategy", "--lower"}) verb->remove_option(verb->get_option(name));
  // These three take lists here.
  const auto list = [&](const char* name, const char* help) {
    verb->get_option(name)->description(help);
  };
  list("--world", "Ranks: 8,16,64 or 8..64 (doubling) [4]");
  list("--seq", "Queries in the whole sequence, likewise [4096]");
  list("--heads", "Query heads, likewise [8]");
  verb->add_option("--bandwidth", flags->bandwidth,
                   "Factors on the rates of all links: 0.5,1,2 [1]")
      ->check(not_empty());
  verb->add_flag("--weak", flags->weak, "--seq is for the first world, and grows with the others");
  verb->add_option("--cluster", flags->cluster,
                   "PRESET, PRESET:nodes=N, or a .toml file; nodes are added as the ranks need")
      ->check(not_empty())
      ->required();
  verb->add_option("--strategies", flags->strategies,
                   "NAME.. or NAME:key=value,.. with blanks between them [all]");
  verb->add_option("--csv", flags->csv, "The table is written there [printed]")->check(not_empty());
  verb->footer(
      "Examples:\n"
      "  armillary sweep --cluster c1 --world 8..64 --seq 524288 --heads 32 --kv-heads 8 "
      "--head-dim "
      "128 --layout zigzag --csv c1.csv\n"
      "  armillary sweep --cluster c3 --world 8..64 --seq 32768..1048576 --heads 32 --head-dim 128 "
      "--layout zigzag --csv c3.csv\n"
      "  armillary sweep --cluster c1 --weak --world 8..64 --seq 65536 --heads 32 --head-dim 128 "
      "--layout zigzag --csv weak.csv\n"
      "Charts of a table: python3 -m bench.plots speedup c1.csv speedup.svg");
  verb->callback([flags, &exit_code] {
    run_sweep(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
