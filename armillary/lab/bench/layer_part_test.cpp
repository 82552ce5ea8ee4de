// layer_part_test.cpp: a layer without its messages computes on the same values in every call.
#include "armillary/lab/bench/layer_part.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/lab/bench/layer.h"
#include "armillary/lab/bench/layer_rate.h"
#include "armillary/lab/bench/thread_ranks.h"

namespace armillary::bench {
namespace {

// Slots are used again by other tiles and by the other pass, so what is received may hold results.
TEST(LayerPart, ComputeHasTheSameInputsInEveryCall) {
  for (const std::string strategy : {"ring", "tokenring", "allgather"}) {
    const plan::Problem problem =
        problem_of({.head_dim = 16, .tokens = 32, .heads = 2, .kv_heads = 2, .world = 2}, 2);
    const Sample whole = sample({.dtype = problem.dtype,
                                 .q_tokens = problem.mask.q_len(),
                                 .k_tokens = problem.mask.kv_len(),
                                 .heads = 2,
                                 .kv_heads = 2,
                                 .head_dim = 16});
    Layer layer(problem, strategy, whole,
                with_only(LayerPart::Compute, problem.world, make_thread_ranks(problem.world, 0)));
    const std::vector<at::Tensor> first = layer.first_run();
    for (int call = 0; call < 20; ++call) layer.run(/*backward=*/true);
    const std::vector<at::Tensor> last = layer.first_run();
    ASSERT_EQ(first.size(), 4U);
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(at::equal(first[i], last[i])) << strategy << ", result " << i;
      EXPECT_TRUE(at::isfinite(last[i]).all().item<bool>()) << strategy << ", result " << i;
    }
  }
}

}  // namespace
}  // namespace armillary::bench
