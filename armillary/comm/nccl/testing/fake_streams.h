// fake_streams.h: the state of all fake GPUs: streams, kernels, and the thread that runs them.
// Internal to fake_nccl.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/nccl/testing/fake_nccl.h"

namespace armillary::comm::fake {

using Clock = std::chrono::steady_clock;

struct Comm;

/// One side of a message in a kernel.
struct MessageSide {
  bool sends;
  int peer;
  std::span<std::byte> bytes;
  bool is_complete = false;
};

/// The arguments of a collective on one rank.
struct FakeCollective {
  enum class CollectiveKind : std::uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast };
  CollectiveKind kind;
  Array from;
  Array to;
  Reduction reduction = Reduction::Sum;
  int root = 0;
};

/// A piece of work of a stream.
struct StreamTask {
  std::function<void()> run;  ///< A copy, an event, or memory that is freed.
  Comm* kernel_of = nullptr;
  std::vector<std::shared_ptr<MessageSide>> sides;
  std::optional<FakeCollective> collective;
  Clock::time_point not_before;
  bool active = false;
  bool collective_is_complete = false;
};

struct Stream {
  std::deque<std::unique_ptr<StreamTask>> tasks;
};

/// The ranks that have made a communicator of one id.
struct Clique {
  std::map<int, Comm*> comms;
  int ended = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<MessageSide>>> sends;     ///< From, to.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<MessageSide>>> receives;  ///< Likewise.
  std::vector<StreamTask*> collectives;  ///< Kernels that have begun, one for each rank that came.
};

/// One rank's end of a communicator.
struct Comm {
  Clique* clique;
  int device;
  int rank;
  int world;
  bool starting = true;  ///< A call has not ended.
  bool is_made = false;  ///< All ranks have come.
  bool ending = false;
  bool aborted = false;
  std::set<int> knocked;               ///< Peers that this rank has ended a group with.
  std::unique_ptr<StreamTask> kernel;  ///< The group that has not ended.
  Stream* stream = nullptr;
  Clock::time_point not_before;
};

}  // namespace armillary::comm::fake

namespace armillary::comm {

/// Everything is guarded by one lock; one thread runs the work of all streams.
class FakeGpus::State {
 public:
  State(int world, const FakeGpuOptions& options);
  ~State();

  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  void wake() { changed_.notify_all(); }
  /// Waits, without the lock, until something has changed so that `is_true`.
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_true) {
    changed_.wait(lock, is_true);
  }

  // Functions and members that follow require the lock.

  void break_rule(std::string text) { broken_rules.push_back(std::move(text)); }
  /// Expects that the last call on a communicator has ended.
  void expect_ready(const fake::Comm& comm, const char* call);
  /// A random time, soon.
  fake::Clock::time_point later();
  void add(fake::Stream* stream, std::unique_ptr<fake::StreamTask> task);
  void add(fake::Stream* stream, std::function<void()> run);
  /// Whether the communicators of this device fail by themselves from now on.
  bool has_failed(int device) const;
  /// Whether streams have kernels of these communicators.
  bool runs_kernel_of(const std::set<const fake::Comm*>& comms) const;
  /// Moves a communicator to those that are gone; peers may still know it.
  void forget(fake::Comm* comm);

  const int world;
  const FakeGpuOptions options;
  std::vector<int> groups;  ///< Per rank: groups that it has ended.
  std::int64_t next_id = 1;
  std::map<std::int64_t, fake::Clique> cliques;
  std::vector<std::unique_ptr<fake::Comm>> comms;
  std::vector<std::unique_ptr<fake::Comm>> comms_gone;
  std::vector<std::unique_ptr<fake::Stream>> streams;
  int comms_made = 0;
  int comms_aborted = 0;
  std::map<std::byte*, std::vector<std::byte>> memory;
  std::int64_t bytes_allocated = 0;
  std::vector<std::string> broken_rules;

 private:
  void run();
  /// Ends the last call on a communicator, if its peers have come. Returns whether it did.
  bool progress(fake::Comm& comm);
  /// Runs the first task of a stream, if it can end. Returns whether it did.
  bool progress(fake::Stream& stream);
  /// Whether a kernel is over: it begins, and meets those of its peers.
  bool is_over(fake::StreamTask& task);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace armillary::comm
