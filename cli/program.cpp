// The program: it checks the verb before CLI11 does, whose texts would be misleading, hands verbs
// over to the other programs, parses the rest, and turns every exception into one line and an exit
// code.
#include "cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/process_stat.h"
#include "armillary/core/user_text.h"
#include "armillary/host/launch/process_place.h"
#include "armillary/proof/digest.h"
#include "cli/hand_over.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// Longest line that is printed whole: paths and lists of names are shorter.
constexpr std::size_t kMostLineBytes = 8000;

/// Writes an error as one line and returns the exit code. Line ends of the user's text become
/// blanks. The text of a failed run ends at its first line: libtorch adds stack frames below.
int complain(int code, std::string_view text) {
  std::string line =
      shorten(printable(code == kFailed ? text.substr(0, text.find('\n')) : text), kMostLineBytes);
  std::ranges::replace(line, '\n', ' ');
  fmt::print(stderr, "armillary: {}\n", line);
  return code;
}

/// Whether this process has met the others of its run.
std::atomic<bool> has_met = false;

/// Whether a launcher started this process as one of several. Variables that make no sense are such
/// a launcher's too.
bool has_peers() {
  try {
    const std::optional<launch::ProcessPlace> place = launch::find_place();
    return place && place->world > 1;
  } catch (const InvalidArgument&) {
    return true;
  }
}

/// The end of a process with bad input (program.h).
int end_with_bad_input(std::string_view text) {
  constexpr double kLeastStay = 1;  // s
  constexpr double kMostStay = 5;
  const int code = complain(kBadInput, text);
  if (!has_met && has_peers() && !StopSignals::stop_requested()) {
    end_at_stop_signals(code);
    const double stay_s = std::clamp(age_of_process_s(), kLeastStay, kMostStay);
    std::this_thread::sleep_for(std::chrono::duration<double>(stay_s));
  }
  return code;
}

/// The text of CLI11 about a flag or argument, which begins with its name, in the words of this
/// program.
std::string text_of_flags(const CLI::ParseError& error) {
  std::string text = error.what();
  const std::string name = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (text.ends_with(" missing")) return name + ": no value given; one is required";
    constexpr std::string_view kReceived = " required but received ";
    const std::size_t at = text.find(kReceived);
    if (at != std::string::npos) {
      return fmt::format("{}: {} values given; at most 1 is required", name,
                         text.substr(at + kReceived.size()));
    }
    return name + ": another number of values given; that of --help is required";
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    return fmt::format("{}: a value of another kind than in --help is required", quote(name));
  }
  return text;  // One of ours, or a name that "is required", "excludes" or "requires" another.
}

/// Says which arguments are not known, with the flag that was most likely meant by the last of
/// them. CLI11 lists them behind a colon.
std::string text_of_extras(const CLI::App& app, std::string_view text) {
  const std::string extras(text.substr(text.find(": ") + 2));
  const std::string word = extras.substr(extras.rfind(' ') + 1);
  std::vector<std::string> flags;
  for (const CLI::App* verb : app.get_subcommands()) {
    for (const CLI::Option* option : verb->get_options()) flags.push_back(option->get_name());
    for (const CLI::App* part : verb->get_subcommands()) {
      for (const CLI::Option* option : part->get_options()) flags.push_back(option->get_name());
    }
  }
  const std::string nearest = nearest_name(word, flags);
  return fmt::format("{} given, which is not known here; arguments of --help are required{}",
                     quote(extras), nearest.empty() ? "" : "; nearest: " + nearest);
}

/// A verb of an earlier version, and what took its place.
struct RetiredVerb {
  std::string_view name;
  std::string_view instead;
};
constexpr std::array<RetiredVerb, 2> kRetiredVerbs{
    {{"sweep", "simulate takes ranges now; `armillary simulate --world 8..64 ..` is required"},
     {"validate",
      "simulate predicts published measurements now; `armillary simulate --published` "
      "is required"}}};

/// Refuses an unknown verb, a missing one, and a flag in its place. CLI11 alone would call an
/// unknown verb an argument too many, and a flag before the verb a missing verb.
void check_verb(const CLI::App& app, int argc, const char* const* argv) {
  const std::string_view word = argc >= 2 ? argv[1] : "";
  if (word == "-h" || word == "--help" || word == "--version") return;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (argc >= 2 && verb->get_name() == word) return;
    verbs.push_back(verb->get_name());
  }
  if (argc < 2) fail<InvalidArgument>("no verb given; {} is required", list_names(verbs));
  if (word.substr(0, 1) == "-") {
    fail<InvalidArgument>("flag {} before the verb; {} is required first, or --help", quote(word),
                          list_names(verbs));
  }
  const auto retired = std::ranges::find(kRetiredVerbs, word, &RetiredVerb::name);
  if (retired != kRetiredVerbs.end()) fail<InvalidArgument>("{}: {}", word, retired->instead);
  const std::string nearest = nearest_name(word, verbs);
  fail<InvalidArgument>("unknown verb {}; {} is required{}", quote(word), list_names(verbs),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

/// Writes the output that is still buffered, so that a full disk is a failure and not a silent
/// loss.
void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fail<Error>("standard output cannot be written: {}", std::strerror(errno));
  }
}

/// Whether these are the verbs of the program that hands verbs over.
bool hands_over(const std::vector<AddVerb>& verbs) {
  return std::find(verbs.begin(), verbs.end(), name_train) != verbs.end();
}

}  // namespace

std::vector<AddVerb> verbs_without_torch() {
  return {add_plan,   add_verify,  add_simulate,   add_tune,    add_advise,
          add_report, add_explain, add_runs,       add_launch,  add_data,
          name_train, name_eval,   name_generate,  name_sample, name_export,
          name_check, name_bench,  name_calibrate, name_doctor};
}

void note_meeting() {
  has_met = true;
}

int run_program(int argc, const char* const* argv, const std::vector<AddVerb>& verbs) {
  CLI::App app("Exact sequence-parallel attention: plans, proofs, and runs.", "armillary");
  int exit_code = kDone;
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("armillary {}", proof::version()));
  app.footer(
      "Exit codes: 0 done, 1 a run failed or a plan is wrong, 2 bad input.\n"
      "Missing folders of files that a verb writes are made.\n"
      "`armillary VERB --help` has examples.");
  for (const AddVerb add : verbs) add(app, exit_code);
  // Verbs run inside parse(), as callbacks.
  try {
    check_verb(app, argc, argv);
    if (hands_over(verbs)) hand_over(argc, argv);
    app.parse(argc, argv);
    flush_output();
  } catch (const CLI::Success& help) {  // --help or --version was given.
    return app.exit(help);
  } catch (const CLI::ExtrasError& error) {
    return end_with_bad_input(text_of_extras(app, error.what()));
  } catch (const CLI::ParseError& error) {
    return end_with_bad_input(text_of_flags(error));
  } catch (const InvalidArgument& error) {
    return end_with_bad_input(error.what());
  } catch (const IoError& error) {
    return end_with_bad_input(error.what());
  } catch (const std::exception& error) {
    return complain(kFailed, error_text(error));
  }
  return exit_code;
}

}  // namespace armillary::cli
