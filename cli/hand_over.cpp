// Starting another program: its path is found beside the executable of this process, and execv
// replaces the process, so that signals and exit codes need no handling here.
#include "cli/hand_over.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "cli/advise.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"

namespace armillary::cli {

void name_train(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("train", kTrainDescription);
}

void name_eval(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("eval", kEvalDescription);
}

void name_generate(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("generate", kGenerateDescription);
}

void name_sample(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("sample", kSampleDescription);
}

void name_export(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("export", kExportDescription);
}

void name_check(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("check", kCheckDescription);
}

void name_bench(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("bench", kBenchDescription);
}

void name_calibrate(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("calibrate", kCalibrateDescription);
}

void name_doctor(CLI::App& app, int& /*exit_code*/) {
  app.add_subcommand("doctor", kDoctorDescription);
}

void hand_over(int argc, const char* const* argv) {
  // The verb is the first argument, as check_verb requires.
  const std::string_view verb = argc >= 2 ? argv[1] : "";
  constexpr std::array<std::string_view, 7> kOfTorch{"train",  "eval",  "generate", "sample",
                                                     "export", "check", "doctor"};
  constexpr std::array<std::string_view, 2> kOfBench{"bench", "calibrate"};
  // `tune` runs layers only if it is to measure, the others read a recipe only if one comes first.
  const auto measures = [](const char* word) {
    return std::string_view(word).starts_with("--measure");
  };
  const auto is_in = [&](const auto& verbs) {
    return std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
  };
  const bool reads = verb == "advise" || verb == "plan" || verb == "verify" || verb == "simulate";
  const bool trains = is_in(kOfTorch) || (reads && argc >= 3 && is_recipe(argv[2]));
  const bool benches =
      is_in(kOfBench) || (verb == "tune" && std::any_of(argv + 2, argv + argc, measures));
  if (!trains && !benches) return;
  std::error_code error;  // Ignored: without a path the program is not there either.
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program =
      (self.parent_path() / (trains ? "armillary-torch" : "armillary-bench")).string();
  if (!std::filesystem::exists(program, error)) {
    fail<InvalidArgument>(
        "{}: {} is not there: this program was built without libtorch, or moved alone; a build "
        "with libtorch is required: ./dev build",
        verb, excerpt(program));
  }
  // execv needs pointers to characters that it could write, and a null pointer behind the last.
  std::vector<std::string> words{program};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  if (verb == "train" || verb == "generate")
    hold_stop_signals();                     // Loading libtorch takes a while.
  execv(program.c_str(), arguments.data());  // Returns only if it fails.
  fail<Error>("{}: {} cannot be started: {}", verb, excerpt(program), std::strerror(errno));
}

}  // namespace armillary::cli
