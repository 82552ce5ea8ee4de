// The part of the verb `simulate` that takes ranges of ranks, lengths, heads and bandwidths: flags,
// lists and the CSV. The work is in lab/sweep/.
#include <fmt/format.h>

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/lab/sweep/sweep.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/simulate.h"

namespace armillary::cli {
namespace {

/// Whether a value is a list or a range.
bool is_list(std::string_view text) {
  return text.find(',') != std::string_view::npos || text.find("..") != std::string_view::npos;
}

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
std::vector<sweep::Constant> constants(const ProblemFlags& flags, const sim::Cluster& cluster) {
  return {{"cluster", cluster.name},
          {"mask", flags.mask},
          {"layout", flags.layout},
          {"batch", flags.batch},
          {"head_dim", flags.head_dim},
          {"value_dim", flags.value_dim.empty() ? flags.head_dim : flags.value_dim},
          {"dtype", flags.dtype},
          {"wire", flags.transfer_dtype}};
}

}  // namespace

bool has_ranges(const ProblemFlags& problem, const RangeFlags& flags) {
  return is_list(problem.world) || is_list(problem.seq) || is_list(problem.heads) || flags.weak ||
         !flags.bandwidth.empty() || !flags.strategies.empty() || !flags.csv.empty();
}

void run_ranges(const ProblemFlags& problem, const RangeFlags& flags, const std::string& cluster) {
  const std::string bandwidth = flags.bandwidth.empty() ? "1" : flags.bandwidth;
  sweep::SweepQuestion question{
      .points = sweep::points({.worlds = parse_ints("--world", problem.world),
                               .seqs = parse_list("--seq", problem.seq),
                               .heads = parse_ints("--heads", problem.heads),
                               .bandwidths = parse_factors("--bandwidth", bandwidth),
                               .weak = flags.weak}),
      .problem = [&](const auto& point) { return problem_at(problem, point); },
      .cluster = sim::load_cluster(cluster),
      .passes = passes(problem),
      .strategies = flags.strategies};
  if (!flags.csv.empty()) check_writable("simulate", flags.csv);
  const std::string csv =
      sweep::to_csv(sweep::sweep(question), question.passes, constants(problem, question.cluster));
  if (flags.csv.empty()) {
    fmt::print("{}", csv);
  } else {
    write_file("simulate", flags.csv, csv);
  }
}

void add_range_flags(CLI::App& verb, RangeFlags& flags) {
  const auto describe = [&](const char* name, const char* help) {
    verb.get_option(name)->description(help);
  };
  describe("--world",
           "Ranks that share the sequence, up to 16384; a list 8,16,64 or a range 8..64, which "
           "doubles [4]");
  describe("--seq", "Queries in the whole sequence; a list or a range likewise [4096]");
  describe("--heads", "Query heads; a list or a range likewise [8]");
  // The name of the group says what these flags, and lists, make of the output.
  const std::string group = "Ranges: a CSV row for each point and strategy";
  verb.add_option("--bandwidth", flags.bandwidth, "Factors on the rates of all links: 0.5,1,2 [1]")
      ->group(group)
      ->check(not_empty());
  verb.add_flag("--weak", flags.weak, "--seq is for the first world, and grows with the others")
      ->group(group);
  verb.add_option("--strategies", flags.strategies,
                  "NAME.. or NAME:key=value,.. with blanks between them [--strategy, or all]")
      ->group(group)
      ->excludes("--strategy");
  verb.add_option("--csv", flags.csv, "The table is written there [printed]")
      ->group(group)
      ->check(not_empty());
}

}  // namespace armillary::cli
