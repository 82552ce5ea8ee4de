// The program `armillary-torch`: verbs that need libtorch. `armillary` starts it for them.
#include "cli/torch/program_with_torch.h"
#include "cli/verbs.h"

// Only a standard error that cannot be written may still throw, and then no message can be shown.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  using namespace armillary::cli;
  return run_program_with_torch(
      argc, argv,
      {add_train, add_eval, add_generate, add_sample, add_export, add_check, add_recipe_advise,
       add_recipe_plan, add_recipe_verify, add_recipe_simulate, add_doctor});
}
