#include "armillary/lab/bench/link_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Seconds = std::chrono::duration<double>;

/// The time until a rank has exchanged `messages` messages of these bytes with the other one, which
/// must be right.
double exchange_s(comm::Communicator& comm, int messages, std::size_t bytes) {
  const int peer = 1 - comm.rank();
  std::vector<std::vector<std::byte>> outgoing, incoming;
  std::vector<comm::Request> requests;
  for (int i = 0; i < messages; ++i) {
    outgoing.emplace_back(bytes, std::byte(i + 10 * comm.rank()));
    incoming.emplace_back(bytes);
  }
  const auto begin = Links::Clock::now();
  for (int i = 0; i < messages; ++i) {
    const auto n = static_cast<std::size_t>(i);
    requests.push_back(comm.irecv(peer, i % 2, std::array{comm::whole(std::span(incoming[n]))}));
    requests.push_back(comm.isend(peer, i % 2, std::array{comm::whole(std::span(outgoing[n]))}));
  }
  for (int left = 2 * messages; left > 0; --left) requests[comm.wait_any(requests)] = {};
  const double seconds = Seconds(Links::Clock::now() - begin).count();
  for (int i = 0; i < messages; ++i) {
    EXPECT_EQ(incoming[static_cast<std::size_t>(i)],
              std::vector<std::byte>(bytes, std::byte(i + 10 * peer)));
  }
  return seconds;
}

// Both directions at once; messages of a direction one after the other, also on two lanes.
TEST(LinkCommunicator, AMessageTakesItsTimeOnTheLink) {
  Links links(2, 1e6);
  comm::run_ranks(2, [&](comm::Communicator& inner) {
    LinkCommunicator comm(inner, links);
    EXPECT_GE(exchange_s(comm, 4, 10'000), 0.04);
    EXPECT_GE(exchange_s(comm, 1, 20'000), 0.02);
  });
}

TEST(LinkCommunicator, AMessageIsNotOverBeforeItsEnd) {
  Links links(2, 1e5);
  const auto begin = Links::Clock::now();
  comm::run_ranks(2, [&](comm::Communicator& inner) {
    LinkCommunicator comm(inner, links);
    std::vector<std::byte> memory(10'000);
    const std::array parts{comm::whole(std::span(memory))};
    const comm::Request request =
        comm.rank() == 0 ? comm.isend(1, 0, parts) : comm.irecv(0, 0, parts);
    while (!comm.is_complete(request)) {
    }
    EXPECT_GE(Seconds(Links::Clock::now() - begin).count(), 0.1);
  });
}

TEST(LinkCommunicator, RefusesALinkWithoutARate) {
  EXPECT_THAT([] { const Links links(2, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a rate above 0 is required")));
}

}  // namespace
}  // namespace armillary::bench
