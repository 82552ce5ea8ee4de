// The part of the verb `simulate` that prints published measurements beside what is predicted for
// them. Everything is predicted before anything is printed, as Markdown or as one object.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/lab/validate/checks.h"
#include "armillary/lab/validate/table.h"
#include "cli/problem_flags.h"
#include "cli/simulate.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

validate::RowFile read_file(const std::string& path) {
  return validate::parse_rows(read_input({.where = "--rows",
                                          .required = "a file of rows as JSON",
                                          .most_bytes = kMostConfigurationBytes},
                                         path),
                              path);
}

/// Everything that is printed.
struct Validation {
  std::vector<validate::Check> checks;
  std::vector<validate::RowFile> files;
  std::vector<std::vector<validate::Prediction>> predictions;  ///< By file.
};

void print(const Validation& all) {
  if (!all.checks.empty()) {
    fmt::print("## Statements\n\nNo number in them is fitted.\n\n{}\n",
               validate::checks_table(all.checks));
  }
  for (std::size_t f = 0; f < all.files.size(); ++f) {
    const validate::RowFile& file = all.files[f];
    fmt::print("## {}\n\n", file.source);
    if (!file.note.empty()) fmt::print("{}\n\n", file.note);
    fmt::print("{}\n{}\n", validate::table(file.rows, all.predictions[f]),
               validate::summary(file.rows, all.predictions[f]));
  }
}

void print_json(const Validation& all) {
  nlohmann::ordered_json json{{"statements", validate::to_json(all.checks)},
                              {"files", nlohmann::ordered_json::array()}};
  for (std::size_t f = 0; f < all.files.size(); ++f) {
    json["files"].push_back(validate::to_json(all.files[f], all.predictions[f]));
  }
  fmt::print("{}\n", json_text(json));
}

}  // namespace

int run_published(const PublishedFlags& flags, bool json) {
  Validation all;
  if (flags.rows.empty()) {
    all.checks = validate::all_checks();
    all.files = validate::published_rows();
  } else {
    all.files.push_back(read_file(flags.rows));
  }
  std::vector<std::string> refused;
  for (const validate::RowFile& file : all.files) {
    all.predictions.push_back(validate::predict(file.rows));
    for (const validate::Prediction& one : all.predictions.back()) {
      if (!one.refused.empty()) refused.push_back(one.refused);
    }
  }
  json ? print_json(all) : print(all);
  if (!refused.empty()) fail<InvalidArgument>("{}", fmt::join(refused, "; "));
  const auto failed = std::ranges::count_if(all.checks, &validate::Check::fails);
  if (failed > 0) {
    fmt::print(stderr, "armillary: {} fail{}\n", count_of(failed, "statement"),
               failed == 1 ? "s" : "");
  }
  return failed > 0 ? kFailed : kDone;
}

void add_published_flags(CLI::App& verb, PublishedFlags& flags) {
  const std::vector<CLI::Option*> others = verb.get_options();
  const std::string group = "Published measurements";
  CLI::Option* const all =
      verb.add_flag("--published", flags.all,
                    "Those of the papers, beside what is predicted for them (docs/validation.md)")
          ->group(group);
  CLI::Option* const rows = verb.add_option("--rows", flags.rows, "Those of this JSON file alone")
                                ->group(group)
                                ->check(not_empty());
  // Each row has its own problem and cluster.
  for (CLI::Option* other : others) {
    if (other->get_name() == "--json" || other->get_name() == "--help") continue;
    all->excludes(other);
    rows->excludes(other);
  }
}

}  // namespace armillary::cli
