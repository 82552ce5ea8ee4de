// hand_over.h: verbs that `armillary` leaves to the programs `armillary-torch` and
// `armillary-bench`, which lie beside it.
#pragma once

#include <CLI/CLI.hpp>

namespace armillary::cli {

/// Each adds a verb of which this program knows only the name and the description, for --help and
/// for errors about unknown verbs.
void name_train(CLI::App& app, int& exit_code);
void name_eval(CLI::App& app, int& exit_code);
void name_generate(CLI::App& app, int& exit_code);
void name_sample(CLI::App& app, int& exit_code);
void name_export(CLI::App& app, int& exit_code);
void name_check(CLI::App& app, int& exit_code);
void name_bench(CLI::App& app, int& exit_code);
void name_calibrate(CLI::App& app, int& exit_code);
void name_doctor(CLI::App& app, int& exit_code);

/// If the first argument is one of those verbs, `tune` with --measure, or `advise`, `plan`,
/// `simulate` or `verify` with a recipe, replaces this process by its program with the same
/// arguments: flags, help and exit codes are then those of that program. `armillary-bench` has the
/// verbs that measure this machine: bench, calibrate, tune. Else returns.
/// @throws InvalidArgument if that program is not beside this one; Error if it cannot be started.
void hand_over(int argc, const char* const* argv);

}  // namespace armillary::cli
