// program_with_torch.h: run_program for programs that have loaded libtorch.
#pragma once

#include <vector>

#include "cli/program.h"

namespace armillary::cli {

/// As run_program; after a failure it ends the process at once, since peers and the launcher wait
/// for the end of a rank that has failed, and taking libtorch down lasts half a second.
int run_program_with_torch(int argc, const char* const* argv, const std::vector<AddVerb>& verbs);

}  // namespace armillary::cli
