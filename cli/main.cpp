#include "cli/program.h"

// What may still throw is stderr that cannot be written; nobody is left to be told.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  return armillary::cli::run_program(argc, argv);
}
