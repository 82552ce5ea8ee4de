// Bad input to `armillary bench`: refused before anything is measured.
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

bool has_bench() {
  return run({"bench", "--help"}).out.find("built without") == std::string::npos;
}

void expect_kernel_refused(const std::vector<std::string>& flags, const std::string& message) {
  std::vector<std::string> arguments{"bench", "kernel"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  expect_refused(arguments, StartsWith(message));
}

TEST(BenchError, KernelsThatThereAreNot) {
  if (!has_bench()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
  expect_refused({"bench"}, testing::Eq("bench: what to measure is not named; kernel is required"));
  expect_refused({"bench", "kernl"}, HasSubstr("kernl"));
  expect_kernel_refused({"--head-dim", "257", "--tokens", "64"},
                        "attend: head dim 257; 1 to 256 is required");
  expect_kernel_refused({"--head-dim", "0"}, "--head-dim: '0' given");
  expect_kernel_refused({"--threads", "0"}, "--threads: '0' given");
  expect_kernel_refused({"--dtype", "fp64"}, "bench: dtype fp64; fp32, bf16 or fp16 is required");
  expect_kernel_refused({"--dtype", "int8"}, "dtype: 'int8' is not known");
  expect_kernel_refused({"--mask", "causl"}, "mask: 'causl' is not known");
  expect_kernel_refused({"--pass", "both"}, "--pass: 'both' is not known");
  expect_kernel_refused({"--heads", "6", "--kv-heads", "4"},
                        "bench: 4096 tokens, world 1, 6 heads, 4 KV heads;");
}

}  // namespace
}  // namespace armillary::error
