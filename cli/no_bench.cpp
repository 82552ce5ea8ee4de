// The verb `bench` of a build without libtorch: it is known, and says what it needs.
#include "armillary/core/error.h"
#include "cli/verbs.h"

namespace armillary::cli {

void add_bench(CLI::App& app, int& /*exit_code*/) {
  CLI::App* verb = app.add_subcommand(
      "bench", "Measure parts of the program (this program was built without it)");
  verb->allow_extras();
  verb->callback([] {
    fail<InvalidArgument>(
        "bench: this program was built without libtorch; a build with it is required: ./dev build");
  });
}

}  // namespace armillary::cli
