#include "cli/torch/program_with_torch.h"

#include <unistd.h>

#include <cstdio>

#include "cli/verbs.h"

namespace armillary::cli {

int run_program_with_torch(int argc, const char* const* argv, const std::vector<AddVerb>& verbs) {
  const int code = run_program(argc, argv, verbs);
  if (code != kDone) {
    // _exit() flushes nothing, so what the verb has printed would be lost.
    std::fflush(nullptr);
    _exit(code);
  }
  return code;
}

}  // namespace armillary::cli
