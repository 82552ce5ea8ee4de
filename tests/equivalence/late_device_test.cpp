// Every strategy on a device that runs ops late equals the run in which each op is done when it was
// started, bit for bit.
#include "armillary/runtime/testing/late_device.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "armillary/runtime/rank.h"
#include "tests/equivalence/cases.h"
#include "tests/seed.h"

namespace armillary::equivalence {
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = [](const at::Tensor& x) {
    return x.clone(at::MemoryFormat::Contiguous).flatten().view(at::kByte);
  };
  return a.defined() == b.defined() && (!a.defined() || bits(a).equal(bits(b)));
}

void expect_same(const kernel::Results& late, const kernel::Results& at_once,
                 const std::string& what) {
  EXPECT_TRUE(same_bits(late.out_BSHE, at_once.out_BSHE)) << "out of " << what;
  EXPECT_TRUE(same_bits(late.lse_BSH, at_once.lse_BSH)) << "lse of " << what;
  EXPECT_TRUE(same_bits(late.dq_BSHD, at_once.dq_BSHD)) << "dq of " << what;
  EXPECT_TRUE(same_bits(late.dk_BSGD, at_once.dk_BSGD)) << "dk of " << what;
  EXPECT_TRUE(same_bits(late.dv_BSGE, at_once.dv_BSGE)) << "dv of " << what;
  EXPECT_TRUE(same_bits(late.dsinks_H, at_once.dsinks_H)) << "dsinks of " << what;
  EXPECT_TRUE(same_bits(late.max_logit_H, at_once.max_logit_H)) << "max_logit of " << what;
}

/// Intra-op threads of libgomp, which is not instrumented, look racy under ThreadSanitizer.
void use_one_thread(comm::Communicator& /*comm*/) {
  at::set_num_threads(1);
}

kernel::Results spread_late(const Case& c, const Drawn& drawn, std::uint64_t seed) {
  return spread(c, drawn, {.shuffle_seed = seed}, [&](comm::Communicator& comm) {
    use_one_thread(comm);
    runtime::Rank::of(comm).use(std::make_shared<runtime::LateDevice>(
        seed + 1000 * static_cast<std::uint64_t>(comm.rank())));
  });
}

/// Cases on 2 to 6 ranks. Half of those in fp32 become bf16.
std::vector<Case> cases_with_bf16(std::uint64_t seed, std::size_t count) {
  std::vector<Case> cases = drawn_cases({2, 3, 4, 5, 6}, seed, count);
  std::mt19937_64 random(seed);
  for (Case& c : cases) {
    if (c.dtype == at::kFloat && random() % 2 == 0) c.dtype = at::kBFloat16;
  }
  return cases;
}

// 2,000 problems with ARMILLARY_TEST_ALL.
TEST(LateDevice, ChangesNoBit) {
  std::uint64_t number = test_seed();
  for (const Case& c : cases_with_bf16(number, test_all() ? 2000 : 20)) {
    const Drawn drawn = draw(c, ++number);
    const kernel::Results at_once = spread(c, drawn, {}, use_one_thread);
    for (const std::uint64_t delays : {1, 2, 3}) {
      expect_same(spread_late(c, drawn, number * 3 + delays), at_once, to_string(c));
      ASSERT_FALSE(HasFailure());
    }
  }
}

}  // namespace
}  // namespace armillary::equivalence
