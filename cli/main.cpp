// armillary: verbs that need no libtorch, to load which takes a quarter of a second; it hands the
// others over.
#include "cli/program.h"

// What may still throw is stderr that cannot be written; nobody is left to be told.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  return armillary::cli::run_program(argc, argv, armillary::cli::verbs_without_torch());
}
