// Bad input to `armillary generate`: exit code 2, and one line that names what was given and what
// is required.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;

TEST(GenerateError, BadInputIsRefused) {
  if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  const Folder folder;
  const std::string prompt = folder.write("prompt.txt", "hello");
  const auto refused = [&](std::vector<std::string> flags, const std::string& text) {
    flags.insert(flags.begin(), {"generate", folder.path("run"), "--prompt-file"});
    expect_error(flags, HasSubstr(text));
  };
  refused({prompt}, "has none of recipe.toml, manifest.json and config.json");
  refused({folder.path("none")}, "generate: ");
  refused({folder.write("empty.txt", "")}, "is empty; at least one byte is required");
  refused({prompt, "--ranks", "0"}, "--ranks 0 given; at least 1 is required");
  refused({prompt, "--tp", "0"}, "--tp 0 given; at least 1 is required");
  refused({prompt, "--ranks", "6", "--tp", "4"}, "a divisor is required; nearest: 3");
  refused({prompt, "--page", "0"}, "--page 0 given; at least 1 is required");
  refused({prompt, "--tokens", "0"}, "--tokens 0 given; at least 1 is required");
  refused({prompt, "--temperature=-1"}, "temperature -1 given; 0 or more is required");
  refused({prompt, "--top-k=-1"}, "top-k -1 given");
  refused({prompt, "--top-p", "0"}, "top-p 0 given; more than 0 and at most 1 is required");
  refused({prompt, "--dtype", "bf17"}, "bf16");
  refused({prompt, "--layout", "zigzig"}, "zigzag");
  refused({prompt, "--strategy", "rink"}, "ring");
  refused({prompt, "--dry-run"}, "--dry-run given; --cluster with a preset");
  refused({prompt, "--cluster", "c5"}, "--cluster c5 given; it is of --dry-run");
  refused({prompt, "--dry-run", "--cluster", "c5", "--chunk", "8"},
          "--chunk 8 given with --dry-run");
  refused({prompt, "--dry-run", "--cluster", "c5", "--strategy", "auto"}, "nearest: ring");
  expect_error({"generate", folder.path("run")}, HasSubstr("--prompt-file"));
}

}  // namespace
}  // namespace armillary::error
