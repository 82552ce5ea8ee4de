// Notices between ranks in one process, of which one comes late: a backend of the group holds what
// it is asked to send until a gate opens.
#include "armillary/comm/c10d/abort_channel.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace armillary::comm {
namespace {

using std::chrono_literals::operator""s;

/// A work that is over when its gate opens, or later.
class HeldWork : public c10d::Work {
 public:
  HeldWork(GlooWork work, std::shared_future<void> gate)
      : work_(std::move(work)), gate_(std::move(gate)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    gate_.wait();
    return work_->wait(timeout);
  }
  void abort() override { work_->abort(); }

 private:
  const GlooWork work_;
  const std::shared_future<void> gate_;
};

/// A group in which receives from one rank end when the gate opens.
class HeldBackend : public c10d::Backend {
 public:
  HeldBackend(GlooBackend backend, int late_rank, std::shared_future<void> gate)
      : Backend(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        late_rank_(late_rank),
        gate_(std::move(gate)) {}
  GlooWork send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return backend_->send(tensors, to, tag);
  }
  GlooWork recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    GlooWork work = backend_->recv(tensors, from, tag);
    if (from != late_rank_) return work;
    return c10::make_intrusive<HeldWork>(std::move(work), gate_);
  }

 private:
  const GlooBackend backend_;
  const int late_rank_;
  const std::shared_future<void> gate_;
};

/// One group of Gloo for each of three ranks.
std::array<GlooBackend, 3> connected() {
  const GlooStore store = c10::make_intrusive<c10d::HashStore>();
  std::array<GlooBackend, 3> groups;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      groups[rank] =
          make_gloo(store, rank, 3, {.prefix = "held/", .interface = {}, .timeout = 30s});
    });
  }
  threads.clear();
  return groups;
}

// Rank 2 hears that rank 1 has left before it hears of the failure for which it did: it must not
// take the group for one that was left in peace, and make another one alone.
TEST(C10dAbortChannel, ARankThatLeavesTellsTheFailureOfAnother) {
  std::promise<void> gate;
  std::array<GlooBackend, 3> groups = connected();
  groups[2] = c10::make_intrusive<HeldBackend>(groups[2], 0, gate.get_future().share());
  std::array<std::optional<OwnHeartbeat>, 3> heartbeats;
  std::array<std::optional<C10dAbortChannel>, 3> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    heartbeats[rank].emplace([] { return 0.0; });
    ranks[rank].emplace(
        groups[rank], std::vector<PeerProcess>(3), *heartbeats[rank],
        C10dAbortChannelHooks{.on_raise = [] {}, .on_answer = [](int, const Heartbeat&) {}});
  }
  ranks[0]->raise(0, "its batch is odd");
  EXPECT_TRUE(ranks[1]->wait_raised(10s));
  ranks[1]->tell_left(false);
  EXPECT_TRUE(ranks[2]->wait_raised(10s));
  EXPECT_FALSE(ranks[2]->is_left());
  if (ranks[2]->raised()) {
    EXPECT_STREQ(ranks[2]->error().what(), "rank 0 failed: its batch is odd");
    EXPECT_TRUE(ranks[2]->is_told());
  }
  gate.set_value();
}

}  // namespace
}  // namespace armillary::comm
