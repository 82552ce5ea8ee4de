// The verb `sweep`: simulated times over ranges of ranks, lengths, heads and bandwidths, as CSV and
// as charts. The work is in sweep/.
#include "armillary/sweep/sweep.h"

#include <fmt/format.h>

#include <memory>
#include <sstream>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/sweep/plots.h"
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
  std::vector<std::string> plots;
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

/// A chart that is asked for: its kind and its file.
struct WantedPlot {
  sweep::Plot plot = sweep::Plot::Speedup;
  std::string path;
};

std::vector<WantedPlot> parse_plots(const std::vector<std::string>& texts) {
  std::vector<WantedPlot> plots;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals + 1 == text.size()) {
      fail<InvalidArgument>("--plot is {}; KIND=FILE is required", quote(text));
    }
    plots.push_back({sweep::parse_plot(text.substr(0, equals)), text.substr(equals + 1)});
  }
  return plots;
}

/// The words below the title of a chart: the cluster, and the numbers that do not differ between
/// points.
std::string subtitle(const SweepFlags& flags, const sim::Cluster& cluster) {
  const auto is_one = [](const std::string& list) {
    return list.find_first_of(",.") == std::string::npos;
  };
  std::string text =
      fmt::format("{}: {}\n{}, {}", cluster.name, cluster.summary, flags.mask, flags.layout);
  // With --weak the axis of the chart has the tokens.
  if (is_one(flags.seq) && !flags.weak)
    text += fmt::format(", {} token{}", flags.seq, flags.seq == "1" ? "" : "s");
  if (is_one(flags.heads))
    text += fmt::format(", {} head{}", flags.heads, flags.heads == "1" ? "" : "s");
  if (!flags.kv_heads.empty()) text += fmt::format(", {} KV heads", flags.kv_heads);
  text += fmt::format(" of {}, {}, {}", flags.head_dim, flags.dtype,
                      flags.pass == "both" ? "forward and backward" : flags.pass);
  const std::vector<double> factors = parse_factors("--bandwidth", flags.bandwidth);
  if (factors.size() == 1 && factors[0] != 1) {
    text += fmt::format("; all links {:g} times as fast", factors[0]);
  }
  return text + "; simulated";
}

void run_sweep(const SweepFlags& flags) {
  const std::vector<WantedPlot> plots = parse_plots(flags.plots);
  sweep::Question question{
      .points = sweep::points({.worlds = parse_ints("--world", flags.world),
                               .seqs = parse_list("--seq", flags.seq),
                               .heads = parse_ints("--heads", flags.heads),
                               .bandwidths = parse_factors("--bandwidth", flags.bandwidth),
                               .weak = flags.weak}),
      .problem = [&](const auto& point) { return problem_at(flags, point); },
      .cluster = sim::load_cluster(flags.cluster),
      .passes = passes(flags),
      .strategies = flags.strategies};
  // Charts and files that cannot be made are refused before anything is simulated.
  for (const WantedPlot& plot : plots) {
    sweep::check_ranges(question.points, plot.plot);
    check_writable("sweep", plot.path);
  }
  if (!flags.csv.empty()) check_writable("sweep", flags.csv);
  const std::string below = subtitle(flags, question.cluster);
  const sweep::Plotted plotted{.rows = sweep::sweep(question), .subtitle = below};
  // Charts that cannot be drawn are refused before anything is written.
  std::vector<std::string> charts;
  charts.reserve(plots.size());
  for (const WantedPlot& plot : plots) charts.push_back(sweep::to_svg(plotted, plot.plot));
  const std::string csv = sweep::to_csv(plotted.rows, question.passes);
  if (flags.csv.empty()) {
    fmt::print("{}", csv);
  } else {
    write_file("sweep", flags.csv, csv);
  }
  for (std::size_t i = 0; i < plots.size(); ++i) write_file("sweep", plots[i].path, charts[i]);
}

}  // namespace

void add_sweep(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("sweep", "Simulated times over ranges, as CSV and charts");
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
  verb->add_option("--plot", flags->plots,
                   "KIND=FILE.svg: speedup, winners or scaling; may be given several times");
  verb->footer(
      "Examples:\n"
      "  armillary sweep --cluster c1 --world 8..64 --seq 524288 --heads 32 --kv-heads 8 "
      "--head-dim "
      "128 --layout zigzag --csv c1.csv --plot speedup=speedup.svg\n"
      "  armillary sweep --cluster c3 --world 8..64 --seq 32768..1048576 --heads 32 --head-dim 128 "
      "--layout zigzag --csv c3.csv --plot winners=winners.svg\n"
      "  armillary sweep --cluster c1 --weak --world 8..64 --seq 65536 --heads 32 --head-dim 128 "
      "--layout zigzag --csv weak.csv --plot scaling=weak.svg");
  verb->callback([flags, &exit_code] {
    run_sweep(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
