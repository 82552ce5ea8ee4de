// The program `armillary-torch`: all verbs, with those that need libtorch. `armillary` starts it
// for them.
#include <unistd.h>

#include <cstdio>

#include "cli/program.h"
#include "cli/verbs.h"

// Only a standard error that cannot be written may still throw, and then no message can be shown.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  const int code = armillary::cli::run_program(argc, argv, armillary::cli::all_verbs());
  if (code != armillary::cli::kDone) {
    // Peers and the launcher wait for the end of a rank that has failed; taking libtorch down lasts
    // half a second.
    std::fflush(nullptr);
    _exit(code);
  }
  return code;
}
