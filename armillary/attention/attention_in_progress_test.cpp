// attention_in_progress_test.cpp: a call that takes K, V and Q one by one sends each as soon as it
// is fed, and changes no bit. A communicator that records the order of messages shows when they
// leave; calls that are dropped or misused end all ranks.
#include "armillary/attention/attention_in_progress.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/attention/testing/small_calls.h"
#include "armillary/attention/testing/told_at_once.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/runtime/rank.h"
#include "armillary/runtime/testing/late_device.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary::attention {
namespace {

/// Feeds a call one input after the other; all three have a graph.
AttentionResults one_by_one(AttentionInProgress call, const Leaves& inputs) {
  const at::Tensor k = inputs.k * 2;
  call.feed_k(k.detach());
  const at::Tensor v = inputs.v * 2;
  call.feed_v(v);
  return call.finish(inputs.q * 2, k, v);
}

TEST(AttentionInProgress, OutputAndGradientsAreThoseOfOneCallBitForBit) {
  on_every_spread([](comm::Communicator& comm, const char* strategy, at::ScalarType dtype,
                     const std::string& where) {
    AttentionOptions options = causal_options(strategy);
    const Leaves plain(comm, options, dtype);
    options.sinks_H = plain.sinks;
    const at::Tensor required =
        sequence_parallel_attention(plain.q * 2, plain.k * 2, plain.v * 2, comm, options);
    const at::Tensor dout = required.detach().sin();
    required.backward(dout);

    const auto expect_same = [&](const Leaves& inputs, const at::Tensor& out,
                                 const std::string& name) {
      expect_same_bits(out, required, where + name);
      out.backward(dout);
      expect_same_grads(inputs, plain, where + name);
    };
    const AttentionShape shape = attention_shape_of(plain.q, plain.k, plain.v);
    for (const std::string device : {"", " late"}) {
      if (!device.empty()) {
        runtime::Rank::of(comm).use(std::make_shared<runtime::LateDevice>(comm.rank()));
      }
      const Leaves once(comm, options, dtype);
      options.sinks_H = once.sinks;
      expect_same(
          once,
          one_by_one(Attention(comm, options).begin(CallKind::Attention, shape), once).out_BLHE,
          device);

      const Leaves again(comm, options, dtype);
      options.sinks_H = again.sinks;
      const AttentionResults first =
          one_by_one(Attention(comm, options).begin(CallKind::Keep, shape), again);
      EXPECT_FALSE(first.out_BLHE.requires_grad()) << where;
      expect_same_bits(first.out_BLHE, required, where + device + " keep");
      const at::Tensor replayed =
          one_by_one(Attention(comm, options).begin(CallKind::Replay, shape, first.kept_output),
                     again)
              .out_BLHE;
      expect_same(again, replayed, device + " replay");
    }
  });
}

// K or V alone is fed ahead; finish takes the other.
TEST(AttentionInProgress, WhatIsNotFedIsTakenInTheEnd) {
  for (const bool k_first : {false, true}) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const AttentionOptions options = causal_options("startrail:c=2");
      const Leaves x(comm, options, at::kFloat);
      auto call =
          Attention(comm, options).begin(CallKind::Attention, attention_shape_of(x.q, x.k, x.v));
      k_first ? call.feed_k(x.k) : call.feed_v(x.v);
      const at::Tensor out_BLHE = call.finish(x.q, x.k, x.v).out_BLHE;
      expect_same_bits(out_BLHE, sequence_parallel_attention(x.q, x.k, x.v, comm, options),
                       k_first ? "k was fed" : "v was fed");
    });
  }
}

TEST(AttentionInProgress, LogSumExpAndLargestLogitToo) {
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    AttentionOptions options = causal_options("ring");
    options.return_max_logit = true;
    const Leaves inputs(comm, options, at::kFloat);
    const AttentionResults required =
        Attention(comm, options)
            .run(CallKind::AttentionLse, {inputs.q * 2, inputs.k * 2, inputs.v * 2});
    const AttentionShape shape = attention_shape_of(inputs.q, inputs.k, inputs.v);
    const AttentionResults results =
        one_by_one(Attention(comm, options).begin(CallKind::AttentionLse, shape), inputs);
    expect_same_bits(results.out_BLHE, required.out_BLHE, "out");
    expect_same_bits(results.lse_BLH, required.lse_BLH, "lse");
    expect_same_bits(results.max_logit_H, required.max_logit_H, "max_logit");
  });
}

/// Numbers of tile messages that this rank had sent when each of its inputs was fed, in the second
/// call: the first one is proved while it is fed.
struct Sent {
  int with_nothing = 0;
  int with_k = 0;
  int with_k_v = 0;
};

Sent sent_by(comm::Communicator& inner, const char* strategy) {
  int sends = 0;
  runtime::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
    sends += runtime::is_of_a_plan(inner, message) && message.direction == comm::Direction::Send;
  });
  const AttentionOptions options = causal_options(strategy);
  const Leaves leaves(comm, options, at::kFloat);
  sequence_parallel_attention(leaves.q, leaves.k, leaves.v, comm, options);
  sends = 0;
  Sent counts;
  auto call = Attention(comm, options)
                  .begin(CallKind::Attention, attention_shape_of(leaves.q, leaves.k, leaves.v));
  counts.with_nothing = sends;
  call.feed_k(leaves.k);
  counts.with_k = sends;
  call.feed_v(leaves.v);
  counts.with_k_v = sends;
  call.finish(leaves.q, leaves.k, leaves.v);
  return counts;
}

TEST(AttentionInProgress, FirstSendsLeaveBeforeTheNextInputIsThere) {
  for (const char* strategy : {"startrail:c=2", "ulysses", "usp:u=2"}) {
    const int world = strategy == std::string("startrail:c=2") ? 8 : 4;
    comm::run_ranks(world, [&](comm::Communicator& comm) {
      const Sent counts = sent_by(comm, strategy);
      EXPECT_EQ(counts.with_nothing, 0) << strategy << " rank " << comm.rank();
      EXPECT_GT(counts.with_k, 0) << strategy << " rank " << comm.rank();
      EXPECT_GT(counts.with_k_v, counts.with_k) << strategy << " rank " << comm.rank();
    });
  }
}

TEST(AttentionInProgress, WhereKAndVTravelTogetherTheyLeaveBeforeQIsThere) {
  for (const char* strategy : {"ring", "allgather"}) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const Sent counts = sent_by(comm, strategy);
      EXPECT_EQ(counts.with_k, 0) << strategy << " rank " << comm.rank();
      EXPECT_GT(counts.with_k_v, 0) << strategy << " rank " << comm.rank();
    });
  }
}

// Failures: rank 1 makes the mistake, rank 0 makes the call correctly.

AttentionShape shape_of_four() {
  return {.batch = 1,
          .q_tokens = 4,
          .kv_tokens = 4,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 8,
          .dtype = at::kFloat};
}

AttentionOptions causal_eight() {
  return {.mask = plan::parse_mask("causal", {8, 8}),
          .layout = plan::parse_layout("zigzag"),
          .strategy = "tokenring"};
}

void attend_four(comm::Communicator& comm) {
  const at::Tensor x = at::ones({1, 4, 2, 8});
  sequence_parallel_attention(x, x, x, comm, causal_eight());
}

TEST(AttentionInProgress, DroppedBeforeItsEndEndsAllRanks) {
  const auto drops_after = [](int fed) {
    return [fed](comm::Communicator& comm) {
      const at::Tensor x = at::ones({1, 4, 2, 8});
      auto call = Attention(comm, causal_eight()).begin(CallKind::Attention, shape_of_four());
      if (fed > 0) call.feed_k(x);
      if (fed > 1) call.feed_v(x);
    };
  };
  for (int fed = 0; fed <= 2; ++fed) {
    expect_told_at_once(attend_four, drops_after(fed),
                        "attention: a call was dropped before it had finished");
  }
}

TEST(AttentionInProgress, WhatDoesNotFitIsRefusedOnAllRanks) {
  const at::Tensor x = at::ones({1, 4, 2, 8});
  const auto expect_error = [&](const AttentionShape& shape, const std::string& reason,
                                const std::function<void(AttentionInProgress&)>& wrong) {
    const auto fails = [&](comm::Communicator& comm) {
      const auto call = [&] {
        auto begun = Attention(comm, causal_eight()).begin(CallKind::Attention, shape);
        wrong(begun);
      };
      EXPECT_THAT(call, testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(reason)));
    };
    expect_told_at_once(attend_four, fails, reason);
  };
  const auto nothing = [](AttentionInProgress&) {};
  AttentionShape shape = shape_of_four();
  shape.kv_tokens = 5;
  expect_error(shape, "5 tokens on rank 1 of 2", nothing);
  shape = shape_of_four();
  shape.dtype = at::kInt;
  expect_error(shape, "attention: q is Int; fp64, fp32", nothing);

  expect_error(shape_of_four(), "k is Float of [1, 5, 2, 8]; rank 1 needs",
               [&](AttentionInProgress& call) {
                 call.feed_k(at::ones({1, 5, 2, 8}));
               });
  expect_error(shape_of_four(), "v is Double of",
               [&](AttentionInProgress& call) { call.feed_v(x.to(at::kDouble)); });
  expect_error(shape_of_four(), "k was fed; this pass does not wait for it",
               [&](AttentionInProgress& call) {
                 call.feed_k(x);
                 call.feed_k(x);
               });
  expect_error(shape_of_four(), "attention: finish is given another v than was fed",
               [&](AttentionInProgress& call) {
                 call.feed_k(x);
                 call.feed_v(x);
                 call.finish(x, x, x.clone());
               });
  expect_error(shape_of_four(), "attention: finish is given q Float [1, 3, 2, 8]; Float [1, 4",
               [&](AttentionInProgress& call) {
                 call.feed_k(x);
                 call.feed_v(x);
                 call.finish(at::ones({1, 3, 2, 8}), x, x);
               });
}

TEST(AttentionInProgress, WhatWasFedMustStayAsItWas) {
  const auto fails = [](comm::Communicator& comm) {
    const at::Tensor x = at::ones({1, 4, 2, 8});
    const at::Tensor v = at::ones({1, 4, 2, 8});
    auto call = Attention(comm, causal_eight()).begin(CallKind::Attention, shape_of_four());
    call.feed_k(x);
    call.feed_v(v);
    v.add_(1);
    EXPECT_THAT([&] { call.finish(x, x, v); },
                testing::ThrowsMessage<InvalidArgument>(
                    "attention: finish: v was written to after it was fed; what was fed is "
                    "required"));
  };
  expect_told_at_once(attend_four, fails, "v was written to after it was fed");
}

// The group may end before the object of a call that was dropped, which still says why.
TEST(AttentionInProgress, OnceDroppedItSaysWhyAndNeedsNoGroup) {
  const at::Tensor x = at::ones({1, 4, 2, 8});
  const auto drops = [&](comm::Communicator& comm) {
    auto group = comm.split(0, 0);
    auto call = Attention(*group, causal_eight()).begin(CallKind::Attention, shape_of_four());
    call.feed_k(x);
    EXPECT_FALSE(call.is_over());
    call.drop("nobody wants it");
    group.reset();
    EXPECT_TRUE(call.is_over());
    call.drop("twice");
    for (const auto& late :
         std::vector<std::function<void()>>{[&] { call.feed_v(x); }, [&] { call.finish(x, x, x); },
                                            [&] { call.check_in_progress(); }}) {
      EXPECT_THAT(late, testing::ThrowsMessage<CommError>(
                            "attention: the call has ended: nobody wants it"));
    }
  };
  const auto waits = [](comm::Communicator& comm) { attend_four(*comm.split(0, 0)); };
  expect_told_at_once(waits, drops, "nobody wants it");
}

TEST(AttentionInProgress, OneCallAtATime) {
  const at::Tensor x = at::ones({1, 4, 2, 8});
  const auto fails = [&](const std::function<void(comm::Communicator&)>& other) {
    return [&x, other](comm::Communicator& comm) {
      auto call = Attention(comm, causal_eight()).begin(CallKind::Attention, shape_of_four());
      call.feed_k(x);
      EXPECT_THAT([&] { other(comm); },
                  testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("another call")));
    };
  };
  const std::string reason = "attention: another call is in progress on rank 1";
  expect_told_at_once(attend_four, fails(attend_four), reason);

  const auto backward_of_first = [&](comm::Communicator& comm) {
    const at::Tensor leaf = x.clone().requires_grad_(true);
    const at::Tensor out = sequence_parallel_attention(leaf, leaf, leaf, comm, causal_eight());
    if (comm.rank() == 0) return attend_four(comm);
    fails([&](comm::Communicator&) { out.sum().backward(); })(comm);
  };
  expect_told_at_once(backward_of_first, backward_of_first, reason);
}

TEST(AttentionInProgress, IsOverOnceFinished) {
  const at::Tensor x = at::ones({1, 4, 2, 8});
  AttentionOptions options = causal_eight();
  options.mask = plan::parse_mask("causal", {4, 4});
  const auto body = [&](comm::Communicator& comm) {
    auto call = Attention(comm, options).begin(CallKind::Attention, shape_of_four());
    call.feed_k(x);
    call.feed_v(x);
    call.finish(x, x, x);
    sequence_parallel_attention(x, x, x, comm, options);  // another call may begin
    EXPECT_THAT([&] { call.feed_k(x); },
                testing::ThrowsMessage<InvalidArgument>("attention: the call is over; begin "
                                                        "another one"));
  };
  EXPECT_THROW(comm::run_ranks(1, body), CommError);
}

// Backward runs on the device that the rank has then; the one of forward may be gone.
TEST(AttentionInProgress, TheDeviceMayChangeBetweenCallsNotWithin) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    AttentionOptions options = causal_options("ring");
    const Leaves plain(comm, options, at::kFloat);
    const Leaves moved(comm, options, at::kFloat);
    options.sinks_H = plain.sinks;
    const at::Tensor required =
        sequence_parallel_attention(plain.q, plain.k, plain.v, comm, options);
    required.backward(required.detach());

    options.sinks_H = moved.sinks;
    runtime::Rank& rank = runtime::Rank::of(comm);
    rank.use(std::make_shared<runtime::LateDevice>(1));
    const at::Tensor out_BLHE =
        sequence_parallel_attention(moved.q, moved.k, moved.v, comm, options);
    rank.use(std::make_shared<runtime::LateDevice>(2));
    out_BLHE.backward(out_BLHE.detach());
    expect_same_bits(out_BLHE, required, "out");
    expect_same_grads(moved, plain, "two devices");

    auto call = Attention(comm, options)
                    .begin(CallKind::Attention, attention_shape_of(moved.q, moved.k, moved.v));
    EXPECT_THROW(rank.use(nullptr), InvalidArgument);
    call.finish(moved.q, moved.k, moved.v);
    rank.use(nullptr);
  });
}

}  // namespace
}  // namespace armillary::attention
