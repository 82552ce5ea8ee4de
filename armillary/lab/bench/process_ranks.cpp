// process_ranks.cpp: turns of a benchmark over processes. Rank 0 leads: it sends the index of the
// next side to all ranks, which run it together. A rank without a part in a side sleeps between two
// looks, so that it takes no core from those that are timed.
#include "armillary/lab/bench/process_ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/peer_wait.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// The lane of calls and times. Collectives use lane 0 and plans those above it, but neither while
/// a call is under way.
constexpr int kCallLane = 1;

/// Index of no side: follow() ends.
constexpr double kDismissed = -1;

/// Time between two looks of a rank that sleeps.
constexpr std::chrono::microseconds kLook(500);

/// Two processes that have just woken may share a core. The system moves one of them away after
/// some milliseconds if both compute.
constexpr std::chrono::milliseconds kSpin(10);

}  // namespace

/// A group of this process and others, or one that this process only waits for (`comm` is null).
class Processes::Group : public Ranks {
 public:
  Group(Processes& processes, comm::Communicator* comm, int first)
      : processes_(processes), comm_(comm), first_(first) {}

  void start(Work work, Repeats repeats) override {
    ARMILLARY_CHECK(repeats.timed > 0);
    if (comm_ == nullptr) return;
    for (const Clock::time_point woken = Clock::now(); Clock::now() - woken < kSpin;) {
    }
    for (int i = 0; i < repeats.untimed; ++i) work(*comm_);
    comm::barrier(*comm_);
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < repeats.timed; ++i) work(*comm_);
    comm::barrier(*comm_);
    seconds_ = std::chrono::duration<double>(Clock::now() - begin).count() / repeats.timed;
  }
  double wait() override { return processes_.tell(seconds_, first_); }
  bool runs(int rank) const override { return comm_ != nullptr && comm_->rank() == rank; }

 private:
  Processes& processes_;
  comm::Communicator* comm_;
  int first_;  ///< The process whose time counts.
  double seconds_ = 0;
};

Processes::Processes(comm::Communicator& comm) : comm_(comm), alone_(comm.split(comm.rank(), 0)) {
  at::set_num_threads(1);
}

std::unique_ptr<Ranks> Processes::make_ranks(int world, int owner) {
  if (world != 1 && world != comm_.world()) {
    fail<InvalidArgument>("bench: world {} on {}; as many ranks are required", world,
                          count_of(comm_.world(), "process", "processes"));
  }
  if (world == comm_.world()) return std::make_unique<Group>(*this, &comm_, 0);
  return std::make_unique<Group>(*this, comm_.rank() == owner ? alone_.get() : nullptr, owner);
}

double Processes::tell(double value, int root) {
  const comm::Strided part = comm::whole(std::span(&value, 1));
  if (rank() != root) {
    const comm::Request request = comm_.irecv(root, kCallLane, {&part, 1});
    // The root may be busy with other programs for long; only a root that is silent is given up.
    const auto root_is_there =
        comm_.begin_peer_wait({.peers = {root}, .timeout_s = comm_.timeout_s(), .describe = [root] {
                                 return fmt::format("bench: no call of rank {}", root);
                               }});
    while (!comm_.is_complete(request)) {
      root_is_there->look();
      comm_.throw_if_failed();
      std::this_thread::sleep_for(kLook);
    }
    return value;
  }
  std::vector<comm::Request> requests;
  for (int peer = 0; peer < comm_.world(); ++peer) {
    if (peer != root) requests.push_back(comm_.isend(peer, kCallLane, {&part, 1}));
  }
  comm_.wait_all(requests);
  return value;
}

std::vector<Side> Processes::lead(std::vector<Side> sides) {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (!sides[i].on_all_ranks) continue;
    sides[i].run = [this, i, run = std::move(sides[i].run)] {
      tell(static_cast<double>(i), 0);
      return run();
    };
  }
  return sides;
}

void Processes::follow(std::span<const Side> sides) {
  for (double next = tell(0, 0); next != kDismissed; next = tell(0, 0)) {
    sides[static_cast<std::size_t>(next)].run();
  }
}

void Processes::dismiss() {
  tell(kDismissed, 0);
}

}  // namespace armillary::bench
