// The program: it checks the verb before CLI11 does, whose texts would be misleading, hands verbs
// over to the other programs, parses the rest, and turns every exception into one line and an exit
// code.
#include "cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/proof/digest.h"
#include "cli/hand_over.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// Writes an error as one line and returns the exit code. Control characters of the user's text
/// become blanks. The text of a failed run ends at its first line: libtorch adds stack frames
/// below.
int complain(int code, std::string_view text) {
  std::string line(code == kFailed ? text.substr(0, text.find('\n')) : text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  fmt::print(stderr, "armillary: {}\n", line);
  return code;
}

/// The flag that was most likely meant by an argument that CLI11 does not know, which is the last
/// word of its text.
std::string nearest_flag(const CLI::App& app, const std::string& text) {
  const std::string given = text.substr(text.rfind(' ') + 1);
  std::vector<std::string> flags;
  for (const CLI::App* verb : app.get_subcommands()) {
    for (const CLI::Option* option : verb->get_options()) flags.push_back(option->get_name());
    for (const CLI::App* part : verb->get_subcommands()) {
      for (const CLI::Option* option : part->get_options()) flags.push_back(option->get_name());
    }
  }
  const std::string nearest = nearest_name(given, flags);
  return nearest.empty() ? "" : "; nearest: " + nearest;
}

/// Refuses an unknown verb, a missing one, and a flag in its place. CLI11 alone would call an
/// unknown verb an argument too many, and a flag before the verb a missing verb.
void check_verb(const CLI::App& app, int argc, const char* const* argv) {
  const std::string_view given = argc >= 2 ? argv[1] : "";
  if (given == "-h" || given == "--help" || given == "--version") return;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (argc >= 2 && verb->get_name() == given) return;
    verbs.push_back(verb->get_name());
  }
  if (argc < 2) fail<InvalidArgument>("no verb given; {} is required", list_names(verbs));
  if (given.substr(0, 1) == "-") {
    fail<InvalidArgument>("flag '{}' before the verb; {} is required first, or --help", given,
                          list_names(verbs));
  }
  const std::string nearest = nearest_name(given, verbs);
  fail<InvalidArgument>("unknown verb '{}'; {} is required{}", given, list_names(verbs),
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
  return {add_plan,   add_verify, add_simulate,   add_validate, add_tune,   add_advise,
          add_report, add_sweep,  add_explain,    add_launch,   name_train, name_export,
          name_check, name_bench, name_calibrate, name_doctor};
}

int run_program(int argc, const char* const* argv, const std::vector<AddVerb>& verbs) {
  CLI::App app("Exact sequence-parallel attention: plans, proofs, and runs.", "armillary");
  int exit_code = kDone;
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("armillary {}", proof::version()));
  app.footer(
      "Exit codes: 0 done, 1 a run failed or a plan is wrong, 2 bad input.\n"
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
    return complain(kBadInput, error.what() + nearest_flag(app, error.what()));
  } catch (const CLI::ParseError& error) {
    return complain(kBadInput, error.what());
  } catch (const InvalidArgument& error) {
    return complain(kBadInput, error.what());
  } catch (const IoError& error) {
    return complain(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return complain(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return complain(kFailed, error.what());
  }
  return exit_code;
}

}  // namespace armillary::cli
