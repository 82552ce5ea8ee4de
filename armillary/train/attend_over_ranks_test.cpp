// attend_over_ranks_test.cpp: the layers of a model send K and V while they still project V and Q.
// Products and messages of one rank are recorded in their order.
#include "armillary/train/attend_over_ranks.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/runtime/testing/watched_communicator.h"
#include "armillary/train/models/decoder.h"
#include "armillary/train/models/gpt.h"

namespace armillary::train {
namespace {

/// Actions of one rank's thread, in order: "mm" for a product that begins, "send" for a message of
/// a plan.
thread_local std::vector<std::string>* events = nullptr;

std::unique_ptr<at::ObserverContext> see_operator(const at::RecordFunction& function) {
  if (events != nullptr && std::string(function.name()) == "aten::mm") events->emplace_back("mm");
  return nullptr;
}

attention::AttentionOptions full_options(const char* strategy, std::int64_t tokens) {
  return {.mask = plan::parse_mask("full", {tokens, tokens}),
          .layout = plan::parse_layout("contiguous"),
          .strategy = strategy};
}

std::vector<std::string> events_of_forward(comm::Communicator& inner, const char* strategy,
                                           Recompute policy) {
  constexpr std::int64_t kTokens = 6;
  std::vector<std::string> seen;
  runtime::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
    if (runtime::is_of_a_plan(inner, message) && message.direction == comm::Direction::Send) {
      seen.emplace_back("send");
    }
  });
  ModelOptions sizes;
  sizes.dim = 32;
  sizes.n_layers = 1;
  sizes.n_heads = 4;
  Decoder model(gpt_options(sizes).recompute(policy));
  model->initialize(1);
  const at::Tensor positions_L = at::arange(kTokens, at::kLong) + kTokens * comm.rank();
  events = &seen;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(see_operator));
  const Attends attends = attend_over_ranks(comm, full_options(strategy, kTokens * comm.world()));
  model->forward(positions_L.unsqueeze(0), positions_L, attends);
  seen.clear();  // The second pass counts: the first one is proved while it is fed.
  const at::Tensor logits = model->forward(positions_L.unsqueeze(0), positions_L, attends);
  at::removeCallback(handle);
  events = nullptr;
  logits.sum().backward();
  return seen;
}

/// Number of sends before the product of this index begins; -1 if there is no such product.
int sends_before_product(const std::vector<std::string>& seen, int product) {
  int sends = 0;
  for (const std::string& event : seen) {
    if (event == "mm" && product-- == 0) return sends;
    sends += event == "send";
  }
  return -1;
}

TEST(AttendOverRanks, SendsLeaveBeforeTheLastProjectionBegins) {
  enum { First, Second, Last };
  for (const char* strategy : {"startrail:c=2", "ulysses", "ring"}) {
    for (const Recompute policy : {Recompute::None, Recompute::Full, Recompute::AttentionOutput}) {
      comm::run_ranks(4, [&](comm::Communicator& comm) {
        const std::vector<std::string> seen = events_of_forward(comm, strategy, policy);
        const std::string where =
            fmt::format("{}, policy {}, rank {}: {}", strategy, static_cast<int>(policy),
                        comm.rank(), fmt::join(seen, " "));
        EXPECT_EQ(sends_before_product(seen, First), 0) << where;
        if (strategy != std::string("ring")) {  // in a ring K and V travel together
          EXPECT_GT(sends_before_product(seen, Second), 0) << where;
        }
        EXPECT_GT(sends_before_product(seen, Last), sends_before_product(seen, Second)) << where;
      });
    }
  }
}

TEST(AttendOverRanks, ALayerThatFailsBetweenItsProjectionsEndsAllRanks) {
  std::vector<std::string> texts(2);
  const auto body = [&](comm::Communicator& comm) {
    const Attends attends = attend_over_ranks(comm, full_options("ring", 12));
    const at::Tensor x = at::ones({1, 6, 2, 8});
    try {
      const Attend::InProgress call = attends.attend.begin({1, 6, 2, 2, 8, at::kFloat});
      call.take_k(x);
      if (comm.rank() == 1) fail<Error>("no memory for v");
      call.take_v(x);
      call.finish(x, x, x);
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  };
  EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = 20}), CommError);
  EXPECT_THAT(texts[0], testing::HasSubstr("rank 1 failed: attention: a call was dropped"));
  EXPECT_EQ(texts[1], "no memory for v");
}

}  // namespace
}  // namespace armillary::train
