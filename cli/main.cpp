// The program `armillary`: the verbs that do not need libtorch, which would take a quarter of a
// second to load. It hands the other verbs over to `armillary-torch` and
// `armillary-bench`.
#include "cli/program.h"

// Only a standard error that cannot be written may still throw, and then no message can be shown.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  return armillary::cli::run_program(argc, argv, armillary::cli::verbs_without_torch());
}
