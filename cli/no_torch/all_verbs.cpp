// all_verbs.cpp: the verbs of all programs in a build without libtorch, which has one program.
#include "cli/program.h"

namespace armillary::cli {

std::vector<AddVerb> all_verbs() {
  return verbs_without_torch();
}

}  // namespace armillary::cli
