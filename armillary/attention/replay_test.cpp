// replay_test.cpp: a recomputed layer that kept attention's output does not attend again. The
// kernel counts its pairs and the communicator its bytes; results are compared bit for bit with the
// call itself.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/attention/testing/small_calls.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::attention {
namespace {

TEST(AttentionReplay, OutputAndGradientsAreThoseOfTheCallItselfBitForBit) {
  on_every_spread([](comm::Communicator& comm, const char* strategy, at::ScalarType dtype,
                     const std::string& where) {
    AttentionOptions options = causal_options(strategy);
    const Leaves plain(comm, options, dtype);
    options.sinks_H = plain.sinks;
    const at::Tensor required =
        sequence_parallel_attention(plain.q, plain.k, plain.v, comm, options);
    const at::Tensor dout = required.detach().sin();
    required.backward(dout);

    const Leaves again(comm, options, dtype);
    options.sinks_H = again.sinks;
    const AttentionResults first =
        Attention(comm, options).run(CallKind::Keep, {again.q, again.k, again.v});
    EXPECT_FALSE(first.out_BLHE.requires_grad()) << where;
    expect_same_bits(first.out_BLHE, required, where + " keep");
    const at::Tensor actual =
        Attention(comm, options)
            .run(CallKind::Replay, {again.q, again.k, again.v}, first.kept_output)
            .out_BLHE;
    expect_same_bits(actual, required, where + " replay");
    EXPECT_FALSE(first.kept_output.out.requires_grad()) << where << ": its graph would hold itself";
    actual.backward(dout);
    expect_same_grads(again, plain, where);
  });
}

/// The CPU kernel; counts the pairs that it attends forward.
class CountingKernel : public kernel::Kernel {
 public:
  bool plain_only() const override { return false; }
  std::int64_t take() const { return pairs_.exchange(0); }

 private:
  std::shared_ptr<const kernel::Prepared> run_prepare(const kernel::Pairs& pairs) const override {
    return kernel::cpu_kernel().prepare(pairs);
  }
  void run_attend(const kernel::Pairs& pairs, const kernel::Inputs& inputs,
                  kernel::Partial& carry) const override {
    pairs_ += pairs.mask->area(pairs.q_runs, pairs.k_runs);
    kernel::cpu_kernel().attend(pairs, inputs, carry);
  }
  void run_attend_grad(const kernel::Pairs& pairs, const kernel::Inputs& inputs,
                       const kernel::OutputGrads& upstream,
                       kernel::InputGrads& grads) const override {
    kernel::cpu_kernel().attend_grad(pairs, inputs, upstream, grads);
  }

  mutable std::atomic<std::int64_t> pairs_ = 0;
};

TEST(AttentionReplay, AttendsToNoPairAndSendsOnlyWhatTradesHeads) {
  static const CountingKernel counting;  // outlives the cache of programs
  for (const Spread& spread : kSpreads) {
    const int world = spread.world;
    const char* strategy = spread.strategy;
    const AttentionOptions options = causal_options(spread.strategy);
    const plan::Problem problem{.world = world,
                                .batch = 2,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 8,
                                .value_dim = 16,
                                .dtype = plan::Dtype::F32,
                                .mask = options.mask,
                                .layout = options.layout};
    std::atomic<std::int64_t> forward_bytes = 0;
    std::atomic<std::int64_t> replay_bytes = 0;
    const auto run = [&](bool replays) {
      comm::run_ranks(world, [&](comm::Communicator& comm) {
        const auto programs =
            runtime::compile_cached(problem, plan::parse_strategy(strategy), comm.rank(), counting);
        const Leaves leaves(comm, options, at::kFloat);
        runtime::Execution execution(replays ? programs->replay : programs->forward, comm,
                                     {.score = {0.3}});
        execution.feed(plan::Tensor::K, leaves.k);
        execution.feed(plan::Tensor::V, leaves.v);
        execution.feed(plan::Tensor::Q, leaves.q);
        if (replays) {
          const runtime::CompiledProgram& program = *programs->replay;
          for (const int tile : program.program.saved) {
            const plan::Tensor tensor = program.program.tiles[tile].tensor;
            if (tensor == plan::Tensor::Out || tensor == plan::Tensor::Lse) {
              execution.feed(tensor, at::zeros(program.shapes[tile]));
            }
          }
        }
        execution.finish();
        (replays ? replay_bytes : forward_bytes) += execution.moved().sent_bytes;
      });
      return counting.take();
    };
    EXPECT_GT(run(false), 0) << strategy;
    EXPECT_EQ(run(true), 0) << strategy << " on " << world << " attends again";
    const std::string name = strategy;
    if (name.starts_with("ulysses")) {
      EXPECT_EQ(replay_bytes, forward_bytes) << strategy << ": all that it sends trades heads";
    } else if (name.starts_with("ring") || name.starts_with("startrail") || name == "tokenring") {
      EXPECT_EQ(replay_bytes, 0) << strategy << " on " << world;
    } else if (world > 2) {
      EXPECT_LT(replay_bytes, forward_bytes) << strategy << " on " << world;
    }
  }
}

TEST(AttentionReplay, RefusesWhatWasNotKept) {
  const AttentionOptions options = causal_options("ring");
  const auto replay = [&](const KeptAttention& kept_output) {
    comm::run_ranks(1, [&](comm::Communicator& comm) {
      const Leaves leaves(comm, options, at::kFloat);
      Attention(comm, options).run(CallKind::Replay, {leaves.q, leaves.k, leaves.v}, kept_output);
    });
  };
  EXPECT_THAT([&] { replay({}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("nothing was kept")));
  EXPECT_THAT(
      [&] {
        replay({at::zeros({2, 3, 4, 16}), at::zeros({2, 3, 4})});
      },
      testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("out is Float")));
}

}  // namespace
}  // namespace armillary::attention
