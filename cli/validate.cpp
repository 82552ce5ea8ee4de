// The verb `validate`: published measurements beside what the simulator predicts for them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/validate/checks.h"
#include "armillary/validate/table.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

validate::RowFile read_file(const std::string& path) {
  std::error_code unreadable;  // Ignored: opening the file fails then.
  if (std::filesystem::is_directory(path, unreadable)) {
    fail<IoError>("--rows: {} is a folder; a file of rows as JSON is required", path);
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) fail<IoError>("--rows: cannot read {}", path);
  return validate::parse_rows(text, path);
}

/// Prints the rows of a file, and adds to `refused` what is wrong with some of them.
void print_rows(const validate::RowFile& file, std::vector<std::string>& refused) {
  const std::vector<validate::Prediction> predictions = validate::predict(file.rows);
  fmt::print("## {}\n\n", file.source);
  if (!file.note.empty()) fmt::print("{}\n\n", file.note);
  fmt::print("{}\n{}\n", validate::table(file.rows, predictions),
             validate::summary(file.rows, predictions));
  for (const validate::Prediction& prediction : predictions) {
    if (!prediction.refused.empty()) refused.push_back(prediction.refused);
  }
}

/// Prints the statements; the number of those that fail.
std::ptrdiff_t print_checks() {
  const std::vector<validate::Check> checks = validate::all_checks();
  fmt::print("## Statements\n\nNo number in them is fitted.\n\n{}\n",
             validate::checks_table(checks));
  return std::count_if(checks.begin(), checks.end(),
                       [](const auto& check) { return !check.holds; });
}

/// The tables of a file, or those of the program.
int run(const std::string& path) {
  std::vector<std::string> refused;
  std::ptrdiff_t failed = 0;
  if (path.empty()) {
    failed = print_checks();
    for (const validate::RowFile& file : validate::published_rows()) print_rows(file, refused);
  } else {
    print_rows(read_file(path), refused);
  }
  if (!refused.empty()) fail<InvalidArgument>("{}", fmt::join(refused, "; "));
  if (failed > 0) fmt::print(stderr, "armillary: {} statements fail\n", failed);
  return failed > 0 ? kFailed : kDone;
}

}  // namespace

void add_validate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("validate", "Published measurements against predictions");
  auto rows = std::make_shared<std::string>();
  verb->add_option("--rows", *rows, "Predict the rows of this JSON file alone (docs/validation.md)")
      ->check(not_empty());
  verb->footer(
      "Examples:\n"
      "  armillary validate\n"
      "  armillary validate --rows my_rows.json\n\n"
      "Exit code: 0 done, 1 a statement fails, 2 a row or a file is refused (the other rows are "
      "printed).");
  verb->callback([rows, &exit_code] { exit_code = run(*rows); });
}

}  // namespace armillary::cli
