// simulate.h: the parts of the verb `simulate` that need no problem of their own: ranges of
// problems, and published measurements.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/problem_flags.h"

namespace armillary::cli {

/// The flags of ranges. An empty text or list is a flag that was not given.
struct RangeFlags {
  std::string bandwidth;
  std::vector<std::string> strategies;
  std::string csv;
  bool weak = false;
};

/// Adds them, and the lists to the help texts of --world, --seq and --heads.
void add_range_flags(CLI::App& verb, RangeFlags& flags);

/// Whether a flag of ranges was given, or a list to --world, --seq or --heads.
bool has_ranges(const ProblemFlags& problem, const RangeFlags& flags);

/// Simulates strategies at every point of the ranges and writes a CSV row for each, to standard
/// output or to --csv. @throws InvalidArgument for malformed lists and as sweep::sweep(); IoError.
void run_ranges(const ProblemFlags& problem, const RangeFlags& flags, const std::string& cluster);

/// The flags of published measurements.
struct PublishedFlags {
  bool all = false;  ///< Those of the program.
  std::string rows;  ///< A file of rows instead.
};

/// Adds them. They exclude all flags that `verb` has, but for --json.
void add_published_flags(CLI::App& verb, PublishedFlags& flags);

/// Prints published measurements beside predictions, as Markdown or as one JSON object. Returns the
/// exit code: 1 if a statement fails. @throws InvalidArgument if rows are refused, after the others
/// were printed; IoError.
int run_published(const PublishedFlags& flags, bool json);

}  // namespace armillary::cli
