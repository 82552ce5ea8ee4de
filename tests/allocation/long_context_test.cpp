// Memory of one rank with 64K tokens: of tensors that must be, and little else.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/local.h"
#include "tests/sanitized.h"

namespace armillary::attention {
namespace {

constexpr std::int64_t kTokens = 65536;
constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kMiB = 1 << 20;

/// `field` of /proc/self/status, which counts in KiB.
std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != field + ":") continue;
    std::int64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return -1;
}

/// Resident memory is the most since the start until this is called; then the most from here on.
bool forget_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << "5";
  return static_cast<bool>(refs.flush());
}

/// Largest growth of resident memory during a step, beyond the tensors that are kept afterwards.
std::int64_t peak_above_tensors(const std::string& mask, at::ScalarType dtype) {
  std::int64_t above = 0;
  comm::run_ranks(1, [&](comm::Communicator& comm) {
    const auto leaf = [&] {
      return at::randn({1, kTokens, 1, kHeadDim}).to(dtype).requires_grad_(true);
    };
    const at::Tensor q = leaf();
    const at::Tensor k = leaf();
    const at::Tensor v = leaf();
    const at::Tensor dout = at::ones({1, kTokens, 1, kHeadDim}, dtype);
    ASSERT_TRUE(forget_peak());
    const std::int64_t before = status_bytes("VmRSS");
    const at::Tensor out =
        sequence_parallel_attention(q, k, v, comm,
                                    {.mask = plan::parse_mask(mask, {kTokens, kTokens}),
                                     .layout = plan::parse_layout("contiguous")});
    out.backward(dout);
    const std::int64_t results = 4 * out.nbytes();  // out, dq, dk, dv
    above = status_bytes("VmHWM") - before - results;
  });
  return above;
}

std::string documents_of_1024() {
  std::string lengths = "1024";
  for (std::int64_t at = 1024; at < kTokens; at += 1024) lengths += ",1024";
  return "documents:" + lengths + ",within=causal";
}

void expect_little(const std::string& mask) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] a sanitizer's allocator";
  if (!forget_peak()) GTEST_SKIP() << "[SKIP] /proc/self/clear_refs cannot be written";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::int64_t above = peak_above_tensors(mask, dtype);
    fmt::print("{} tokens, 1 head of {}, {}: {} MiB over inputs, outputs and gradients\n", kTokens,
               kHeadDim, at::toString(dtype), above / kMiB);
    EXPECT_LE(above, 64 * kMiB) << at::toString(dtype);
    EXPECT_GE(above, 0) << at::toString(dtype);
  }
}

TEST(LongContext, DocumentsTakeLittleMoreThanTheirTensors) {
  expect_little(documents_of_1024());
}

/// Some 3 TFLOP.
TEST(LongContext, SoDoesACausalMask) {
  if (std::getenv("ARMILLARY_TEST_ALL") == nullptr) GTEST_SKIP() << "[SKIP] two minutes: --all";
  expect_little("causal");
}

}  // namespace
}  // namespace armillary::attention
