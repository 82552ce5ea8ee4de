// The verb `validate`: published measurements beside what the simulator predicts for them.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <memory>

#include "armillary/core/error.h"
#include "armillary/validate/checks.h"
#include "armillary/validate/table.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

validate::RowFile read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) fail<IoError>("--rows: cannot read {}", path);
  return validate::parse_rows(text, path);
}

void print_rows(const validate::RowFile& file) {
  const std::vector<validate::Prediction> predictions = validate::predict(file.rows);
  fmt::print("## {}\n\n", file.source);
  if (!file.note.empty()) fmt::print("{}\n\n", file.note);
  fmt::print("{}\n{}\n", validate::table(file.rows, predictions),
             validate::summary(file.rows, predictions));
}

void print_checks() {
  fmt::print(
      "## Statements\n\nNo number in them is fitted.\n\n"
      "{}\n",
      validate::checks_table(validate::all_checks()));
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
      "  armillary validate --rows my_rows.json");
  verb->callback([rows, &exit_code] {
    if (rows->empty()) {
      print_checks();
      for (const validate::RowFile& file : validate::published_rows()) print_rows(file);
    } else {
      print_rows(read_file(*rows));
    }
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
