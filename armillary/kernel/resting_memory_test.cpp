// Accumulators that are kept between the stages of a call stay within their workspace.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <thread>

#include "armillary/kernel/cpu/attention_args.h"
#include "armillary/kernel/cpu/stages.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/testing/dealt_attention.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

constexpr std::int64_t kDim = 256;

struct Case {
  plan::Lengths lengths;
  std::string mask;
  std::int64_t heads, kv_heads;
};

/// Runs a call on a thread whose workspace is already larger than the call may need, and checks
/// that it writes only to the part that it may use.
void expect_no_more_than_it_may(const Case& example) {
  const auto& [lengths, text, heads, kv_heads] = example;
  const plan::Mask mask = plan::parse_mask(text, lengths);
  const Sequences x =
      random_sequences({.heads = heads, .kv_heads = kv_heads, .head_dim = kDim, .value_dim = kDim},
                       mask, at::kBFloat16, 3);
  // The limit: about kRestingFloats, plus dq of the query heads of one KV head.
  const auto most =
      static_cast<std::size_t>(cpu::kRestingFloats + heads / kv_heads * lengths.q * kDim);
  constexpr float kUntouched = 12345;
  const std::span memory(cpu::resting_memory().floats(3 * most), 3 * most);
  std::fill(memory.begin(), memory.end(), kUntouched);
  dealt_attention(cpu_kernel(), x, mask,
                  {.q_blocks = {run(0, lengths.q)},
                   .k_blocks = {run(0, lengths.kv)},
                   .q_heads = {{0, heads}},
                   .all = true},
                  1.0 / 16);
  const std::string where = fmt::format("{} x {}, {}", lengths.q, lengths.kv, text);
  ASSERT_EQ(cpu::resting_memory().floats(1), memory.data()) << where << ": three times as much";
  EXPECT_NE(memory[0], kUntouched) << where << ": no sum waits";
  const std::span beyond = memory.subspan(most);
  EXPECT_EQ(std::count(beyond.begin(), beyond.end(), kUntouched), std::ssize(beyond)) << where;
}

// Keys alone, and queries and keys, that are packed in several stages even in bf16, which takes
// half the memory. With 48 query heads per KV head, one row block exceeds both limits: 200 GFLOP,
// on the path of the first.
TEST(RestingMemory, HoldsNoMoreSumsThanItMay) {
  for (const Case& example : {Case{{.q = 20, .kv = 9001}, "full", 4, 2},
                              Case{{.q = 9001, .kv = 9001}, "window:left=40,right=9", 2, 1},
                              Case{{.q = 100, .kv = 9001}, "full", 48, 1}}) {
    if (sanitizer_samples() && example.heads == 48) continue;
    std::thread([&] { expect_no_more_than_it_may(example); }).join();
  }
}

}  // namespace
}  // namespace armillary::kernel
