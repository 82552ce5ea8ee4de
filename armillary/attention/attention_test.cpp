// attention_test.cpp: forward and backward without a graph give the bits of a call in a graph.
#include "armillary/attention/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/attention/testing/small_calls.h"

namespace armillary::attention {
namespace {

TEST(Attention, GivesTheSameBitsWithoutAGraph) {
  on_every_spread([](comm::Communicator& comm, const char* strategy, at::ScalarType dtype,
                     const std::string& where) {
    AttentionOptions options = causal_options(strategy);
    const Leaves x(comm, options, dtype);
    options.sinks_H = x.sinks;
    const at::Tensor required = sequence_parallel_attention(x.q, x.k, x.v, comm, options);
    const at::Tensor dout = required.detach().sin();
    required.backward(dout);

    const Attention attention(comm, options);
    const AttentionResults results = attention.run(CallKind::Functional, {x.q, x.k, x.v});
    EXPECT_FALSE(results.out_BLHE.requires_grad()) << where;
    expect_same_bits(results.out_BLHE, required, where);
    const AttentionGradients gradients =
        attention.backward(results.saved, dout, attention_shape_of(x.q, x.k, x.v));
    const at::Tensor actual[] = {gradients.dq_BLHD, gradients.dk_BLGD, gradients.dv_BLGE,
                                 gradients.dsinks_H};
    for (std::size_t i = 0; i < 4; ++i) {
      expect_same_bits(actual[i], x.grads()[i], where + " gradient " + std::to_string(i));
    }
  });
}

TEST(Attention, HasNoGradientOfSinksThatAreNotThere) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    const AttentionOptions options = causal_options("ring");
    const Leaves x(comm, options, at::kFloat);
    const Attention attention(comm, options);
    const AttentionResults results = attention.run(CallKind::Functional, {x.q, x.k, x.v});
    const AttentionGradients gradients =
        attention.backward(results.saved, results.out_BLHE, attention_shape_of(x.q, x.k, x.v));
    EXPECT_TRUE(gradients.dq_BLHD.defined());
    EXPECT_FALSE(gradients.dsinks_H.defined());
  });
}

}  // namespace
}  // namespace armillary::attention
