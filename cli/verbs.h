// verbs.h: the verbs of the program, one source file each. A verb parses its flags and calls the
// library: tables and texts are all the logic it has. Its errors are exceptions of the library,
// which run_program turns into exit codes.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace armillary::cli {

// Exit codes of the program. tests/error checks them for many command lines.

inline constexpr int kDone = 0;      ///< The verb did its work; for `verify`, every plan is exact.
inline constexpr int kFailed = 1;    ///< A run failed, or a plan is wrong.
inline constexpr int kBadInput = 2;  ///< InvalidArgument, IoError, flags that do not parse.

/// Each adds a verb to `app`. The verb runs when the command line is parsed, and sets `exit_code`.
void add_plan(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);    ///< Without --measure.
void add_advise(CLI::App& app, int& exit_code);  ///< Without recipes.
void add_explain(CLI::App& app, int& exit_code);
void add_runs(CLI::App& app, int& exit_code);
void add_launch(CLI::App& app, int& exit_code);
void add_data(CLI::App& app, int& exit_code);

// Verbs of cli/torch/ and cli/bench/. Their descriptions are shared with the program that hands
// them over.
void add_train(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_sample(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_calibrate(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_measuring_tune(CLI::App& app, int& exit_code);   ///< `tune` with --measure.
void add_recipe_advise(CLI::App& app, int& exit_code);    ///< `advise` with recipes.
void add_recipe_plan(CLI::App& app, int& exit_code);      ///< `plan` with a recipe.
void add_recipe_verify(CLI::App& app, int& exit_code);    ///< `verify` with a recipe.
void add_recipe_simulate(CLI::App& app, int& exit_code);  ///< `simulate` with a recipe.
inline constexpr const char* kTrainDescription = "Train a model, every sequence spread over ranks";
inline constexpr const char* kEvalDescription =
    "Say the loss of a run or a model folder on data, on any mesh";
inline constexpr const char* kGenerateDescription =
    "Continue a text with a trained model, read and kept over ranks";
inline constexpr const char* kSampleDescription = "Make pictures with a trained dit, on any mesh";
inline constexpr const char* kExportDescription =
    "Write the parameters of a run as a folder for other programs";
inline constexpr const char* kCheckDescription =
    "Compare a recipe's model over ranks with the same model on one device";
inline constexpr const char* kBenchDescription = "Measure parts of the program on this machine";
inline constexpr const char* kCalibrateDescription =
    "Measure this machine and describe it as a cluster for simulate";
inline constexpr const char* kDoctorDescription =
    "Say what this machine has for a run: kernels, engines, networks";

}  // namespace armillary::cli
