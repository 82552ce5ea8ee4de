// The program `armillary-torch`: all verbs, with those that need libtorch. `armillary` starts it
// for them.
#include "cli/program.h"

// Only a standard error that cannot be written may still throw, and then no message can be shown.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  return armillary::cli::run_program(argc, argv, armillary::cli::all_verbs());
}
