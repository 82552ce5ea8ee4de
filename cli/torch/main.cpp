// armillary-torch: all verbs, those that need libtorch too. `armillary` starts it when it has to.
#include "cli/program.h"

// What may still throw is stderr that cannot be written; nobody is left to be told.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  return armillary::cli::run_program(argc, argv, armillary::cli::all_verbs());
}
