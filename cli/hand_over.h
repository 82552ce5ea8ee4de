// hand_over.h: verbs of another program, `armillary-torch`, which lies beside this one.
#pragma once

#include <CLI/CLI.hpp>

namespace armillary::cli {

/// Each adds a verb that this program only knows by name and description.
void name_train(CLI::App& app, int& exit_code);
void name_bench(CLI::App& app, int& exit_code);
void name_doctor(CLI::App& app, int& exit_code);

/// Replaces this process by `armillary-torch` with the same arguments, if the first is one of those
/// verbs: flags, help and exit codes are then those of that program.
/// @throws InvalidArgument if it does not lie beside this one; Error if it cannot be started.
void hand_over(int argc, const char* const* argv);

}  // namespace armillary::cli
