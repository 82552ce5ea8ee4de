// verbs.h: the verbs of the program, one source file each. A verb parses its flags and calls the
// library; its errors are the library's, and main says what they mean for the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace armillary::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;    ///< A run failed, or a plan is wrong.
inline constexpr int kBadInput = 2;  ///< InvalidArgument, IoError, flags that do not parse.

void add_plan(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);

// Of cli/torch/. Their descriptions are also those of who hands them over.
void add_train(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
inline constexpr const char* kTrainDescription = "Train a model, every sequence spread over ranks";
inline constexpr const char* kBenchDescription = "Measure parts of the program on this machine";
inline constexpr const char* kDoctorDescription =
    "Say which kernels this machine can run, and which are taken";

}  // namespace armillary::cli
