// The verb `validate`: published measurements beside what the simulator predicts for them.
// Everything is predicted before anything is printed, as Markdown or as one object.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/lab/validate/checks.h"
#include "armillary/lab/validate/table.h"
#include "cli/problem_flags.h"
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

/// The tables of a file, or those of the program.
int run(const std::string& path, bool json) {
  Validation all;
  if (path.empty()) {
    all.checks = validate::all_checks();
    all.files = validate::published_rows();
  } else {
    all.files.push_back(read_file(path));
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

}  // namespace

void add_validate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("validate", "Published measurements against predictions");
  auto rows = std::make_shared<std::string>();
  verb->add_option("--rows", *rows, "Predict the rows of this JSON file alone (docs/validation.md)")
      ->check(not_empty());
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Statements and rows as one JSON object (docs/validation.md)");
  verb->footer(
      "Examples:\n"
      "  armillary validate\n"
      "  armillary validate --json\n"
      "  armillary validate --rows my_rows.json\n\n"
      "Exit code: 0 done, 1 a statement is outside of its bounds and not known to be, or not where "
      "it "
      "is known to be, 2 a row or a file is refused (the other rows are printed).");
  verb->callback([rows, json, &exit_code] { exit_code = run(*rows, *json); });
}

}  // namespace armillary::cli
