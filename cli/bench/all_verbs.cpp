// all_verbs.cpp: the verbs of all programs. The list is here because only this folder is linked
// with what measures: bench, calibrate and the measuring tune.
#include "cli/program.h"
#include "cli/verbs.h"

namespace armillary::cli {

std::vector<AddVerb> all_verbs() {
  return {add_plan,   add_verify,  add_simulate,  add_measuring_tune, add_recipe_advise,
          add_report, add_explain, add_runs,      add_launch,         add_data,
          add_train,  add_eval,    add_generate,  add_sample,         add_export,
          add_check,  add_bench,   add_calibrate, add_doctor};
}

}  // namespace armillary::cli
