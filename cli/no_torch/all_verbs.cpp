#include "cli/program.h"

namespace armillary::cli {

std::vector<AddVerb> all_verbs() {
  return verbs_without_torch();
}

}  // namespace armillary::cli
