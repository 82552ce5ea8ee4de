// program.h: the program `armillary VERB` as a function, which tests call too. It has no logic of
// its own: a verb parses flags and calls the library.
#pragma once

#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace armillary::cli {

/// Adds a verb that runs when it is parsed and leaves its exit code in `exit_code`, which must live
/// as long as `app`.
using AddVerb = void (*)(CLI::App& app, int& exit_code);

/// The verbs of `armillary`: those that need no libtorch, and the names of the others.
std::vector<AddVerb> verbs_without_torch();
/// The verbs of all programs, for tests that run many command lines. In a build without libtorch
/// they are those of `armillary`. Defined in bench/ and in no_torch/, of which one is linked.
std::vector<AddVerb> all_verbs();

/// Parses the command line and runs its verb. An error is written to standard error as one line.
/// Returns the exit code: 0 done, 1 a run failed, 2 bad input. Throws only if standard error cannot
/// be written.
///
/// Launchers end all processes of a run with the first that exits, and each is to say what it
/// refuses. So one of several stays behind its line, until note_meeting(): as long as it took to
/// come there, since another may be so much later, but 1 s at least and 5 s at most. SIGTERM and
/// SIGINT end the stay.
int run_program(int argc, const char* const* argv, const std::vector<AddVerb>& verbs);

/// Says that this process has met the others of its run, which hear of its errors from now on.
/// Threads: any.
void note_meeting();

}  // namespace armillary::cli
