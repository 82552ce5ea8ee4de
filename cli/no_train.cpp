// The verb `train` of a build without libtorch: it is known, and says what it needs.
#include "armillary/core/error.h"
#include "cli/verbs.h"

namespace armillary::cli {

void add_train(CLI::App& app, int& /*exit_code*/) {
  CLI::App* verb = app.add_subcommand("train", "Train a model (this program was built without it)");
  verb->allow_extras();
  verb->callback([] {
    fail<InvalidArgument>(
        "train: this program was built without libtorch; a build with it is required: ./dev build");
  });
}

}  // namespace armillary::cli
