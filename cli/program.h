// program.h: the program `armillary VERB`, but for its process. No logic of its own: a verb parses
// flags and calls the library.
#pragma once

namespace armillary::cli {

/// Parses the command line, does what it says, and says in one line on standard error what went
/// wrong. Returns the exit code: 0 done, 1 a run failed, 2 bad input. Throws only if standard error
/// cannot be written.
int run_program(int argc, const char* const* argv);

}  // namespace armillary::cli
