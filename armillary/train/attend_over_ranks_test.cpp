// attend_over_ranks_test.cpp: the layers of a model send K and V while they still project V and Q.
// Products and messages of one rank are recorded in their order.
#include "armillary/train/attend_over_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/gpt.h"
#include "armillary/model/testing/decoder_replica.h"
#include "armillary/runtime/testing/watched_communicator.h"
#include "armillary/train/packed_text.h"

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
                                           cost::Recompute policy) {
  constexpr std::int64_t kTokens = 6;
  std::vector<std::string> texts;
  runtime::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
    if (runtime::is_of_a_plan(inner, message) && message.direction == comm::Direction::Send) {
      texts.emplace_back("send");
    }
  });
  model::ModelOptions sizes;
  sizes.dim = 32;
  sizes.n_layers = 1;
  sizes.n_heads = 4;
  const model::DecoderReplica model(
      model::gpt_options(sizes).vocab_size(kVocabSize).recompute(policy));
  const at::Tensor positions_L = at::arange(kTokens, at::kLong) + kTokens * comm.rank();
  events = &texts;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(see_operator));
  const model::Attends attends =
      attend_over_ranks(comm, full_options(strategy, kTokens * comm.world()));
  model.logits(positions_L.unsqueeze(0), positions_L, attends);
  texts.clear();  // The second pass counts: the first one is proved while it is fed.
  const at::Tensor logits = model.logits(positions_L.unsqueeze(0), positions_L, attends);
  at::removeCallback(handle);
  events = nullptr;
  logits.sum().backward();
  return texts;
}

/// Number of sends before the product of this index begins; -1 if there is no such product.
int sends_before_product(const std::vector<std::string>& texts, int product) {
  int sends = 0;
  for (const std::string& event : texts) {
    if (event == "mm" && product-- == 0) return sends;
    sends += event == "send";
  }
  return -1;
}

TEST(AttendOverRanks, SendsLeaveBeforeTheLastProjectionBegins) {
  enum { First, Second, Last };
  for (const char* strategy : {"startrail:c=2", "ulysses", "ring"}) {
    for (const cost::Recompute policy :
         {cost::Recompute::None, cost::Recompute::Full, cost::Recompute::AttentionOutput}) {
      comm::run_ranks(4, [&](comm::Communicator& comm) {
        const std::vector<std::string> texts = events_of_forward(comm, strategy, policy);
        const std::string where =
            fmt::format("{}, policy {}, rank {}: {}", strategy, static_cast<int>(policy),
                        comm.rank(), fmt::join(texts, " "));
        EXPECT_EQ(sends_before_product(texts, First), 0) << where;
        if (strategy != std::string("ring")) {  // in a ring K and V travel together
          EXPECT_GT(sends_before_product(texts, Second), 0) << where;
        }
        EXPECT_GT(sends_before_product(texts, Last), sends_before_product(texts, Second)) << where;
      });
    }
  }
}

TEST(AttendOverRanks, ALayerThatFailsBetweenItsProjectionsEndsAllRanks) {
  std::vector<std::string> texts(2);
  const auto body = [&](comm::Communicator& comm) {
    const model::Attends attends = attend_over_ranks(comm, full_options("ring", 12));
    const at::Tensor x = at::ones({1, 6, 2, 8});
    try {
      const model::Attend::InProgress call = attends.attend.begin({1, 6, 2, 2, 8, at::kFloat});
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
