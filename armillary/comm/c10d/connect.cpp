// Making a group. The store of PyTorch has timeouts for what it waits for, but none for an answer
// of a server that is stopped; so everything runs on a thread of its own, which is left behind if
// it does not end in time.
#include "armillary/comm/c10d/connect.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds that rank 0, which holds the store, stays for others to read a refusal.
constexpr double kRefusal = 0.7;
constexpr std::chrono::milliseconds kLook(2);

std::chrono::milliseconds as_timeout(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * seconds) + 1);
}

double seconds_after(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One process of a group that is being made.
struct Member {
  std::string caller;  ///< The function that error texts begin with.
  int rank = 0;
  int world = 1;
  std::string prefix;  ///< The start of the group's keys in the store.
};

/// The meeting of the ranks in the store. Functions throw exceptions of PyTorch.
class Meeting {
 public:
  Meeting(c10d::Store& store, const Member& mine)
      : store_(store), mine_(mine), records_(mine.world) {}

  /// Returns the processes when all ranks have come with equal worlds and lanes.
  std::vector<PeerProcess> meet(const C10dOptions& options) {
    const Clock::time_point begin = Clock::now();
    if (store_.add(key(fmt::format("rank{}", mine_.rank)), 1) > 1) {
      refuse<InvalidArgument>(
          fmt::format("two processes have rank {}; each rank once is required", mine_.rank));
    }
    const PeerProcess process = PeerProcess::of_this_process();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&process);
    store_.set(key(fmt::format("process{}", mine_.rank)),
               std::vector<std::uint8_t>(bytes, bytes + sizeof process));
    // The record tells the others that this rank is here.
    store_.set(key(fmt::format("record{}", mine_.rank)),
               fmt::format("a world of {} and {} lanes", mine_.world, options.lanes));
    for (int missing = look(); missing < mine_.world; missing = look()) {
      const double waited_s = seconds_after(begin);
      if (waited_s > options.timeout_s) {
        refuse<CommError>(fmt::format("rank {} of {} did not come within {:.3g} s", missing,
                                      mine_.world, waited_s));
      }
      std::this_thread::sleep_for(kLook);
    }
    return processes();
  }

 private:
  std::vector<PeerProcess> processes() {
    std::vector<PeerProcess> all(mine_.world);
    for (int rank = 0; rank < mine_.world; ++rank) {
      const std::vector<std::uint8_t> bytes = store_.get(key(fmt::format("process{}", rank)));
      if (bytes.size() == sizeof(PeerProcess)) std::memcpy(&all[rank], bytes.data(), bytes.size());
    }
    return all;
  }

  std::string key(const std::string& name) const { return mine_.prefix + name; }

  /// Reads the records that have come. Returns the first rank that has not, or the world.
  int look() {
    if (store_.check({key("refusal")})) refuse<InvalidArgument>("");
    // A record that was read once stays; those of ranks that have not come are looked for again.
    int missing = mine_.world;
    for (int rank = mine_.world - 1; rank >= 0; --rank) {
      const std::string name = key(fmt::format("record{}", rank));
      if (records_[rank].empty() && store_.check({name})) records_[rank] = store_.get_to_str(name);
      if (records_[rank].empty()) missing = rank;
    }
    compare();
    return missing;
  }

  void compare() {
    const auto is_there = [](const std::string& record) { return !record.empty(); };
    const auto first = std::ranges::find_if(records_, is_there);
    if (first == records_.end()) return;
    const auto other = std::find_if(first, records_.end(), [&](const std::string& record) {
      return is_there(record) && record != *first;
    });
    if (other == records_.end()) return;
    refuse<InvalidArgument>(
        fmt::format("rank {} has {}, rank {} has {}; equal options are required",
                    first - records_.begin(), *first, other - records_.begin(), *other));
  }

  /// Throws the refusal that was first in the store: an E with this text if there is none.
  template <class E>
  [[noreturn]] void refuse(const std::string& text) {
    // The first letter tells the class of the exception.
    constexpr char kKind = std::is_same_v<E, CommError> ? 'C' : 'I';
    const std::string first = store_.compareSet(key("refusal"), std::string(), kKind + text);
    store_.add(key("refused"), 1);
    const Clock::time_point begin = Clock::now();
    while (mine_.rank == 0 && seconds_after(begin) < kRefusal &&
           store_.add(key("refused"), 0) < mine_.world) {
      std::this_thread::sleep_for(kLook);
    }
    const std::string told = fmt::format("{}: {}", mine_.caller, first.substr(1));
    if (first[0] == 'C') throw CommError(told);
    throw InvalidArgument(told);
  }

  c10d::Store& store_;
  const Member& mine_;
  std::vector<std::string> records_;  ///< Per rank; empty if it has not come.
};

std::vector<PeerProcess> meet(c10d::Store& store, const Member& mine, const C10dOptions& options) {
  try {
    return Meeting(store, mine).meet(options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail<CommError>("{}: rank {} lost the store: {}", mine.caller, mine.rank, first_line(e));
  }
}

[[noreturn]] void refuse_connection(const Member& mine, const C10dOptions& options,
                                    const std::exception& error) {
  fail<CommError>("{}: rank {} cannot connect to the other ranks{}{}: {}", mine.caller, mine.rank,
                  options.interface.empty() ? "" : " over interface ", options.interface,
                  first_line(error));
}

/// Checks the interface before the ranks meet: each rank names its own error, and rank 0 does not
/// take the store away from ranks that use it.
void expect_interface(const Member& mine, const C10dOptions& options) {
  try {
    try_interface(options.interface);
  } catch (const std::exception& e) {
    refuse_connection(mine, options, e);
  }
}

/// A new group of Gloo for the ranks that have met.
GlooBackend connect_gloo(const GlooStore& store, const Member& mine, const std::string& name,
                         const C10dOptions& options) {
  try {
    return make_gloo(store, mine.rank, mine.world,
                     {.prefix = mine.prefix + name,
                      .interface = options.interface,
                      .timeout = as_timeout(options.timeout_s)});
  } catch (const std::exception& e) {
    refuse_connection(mine, options, e);
  }
}

/// Ignores SIGPIPE, as Python does: a write of Gloo to a closed connection is then an error and
/// does not end the process.
void ignore_broken_pipes() {
  struct sigaction action = {};
  sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

/// Calls `make` on a thread, which may outlive this function. @throws CommError if it does.
C10dConnections in_time(std::function<C10dConnections()> make, const Member& mine,
                        double timeout_s) {
  ignore_broken_pipes();
  std::packaged_task<C10dConnections()> task(std::move(make));
  std::future<C10dConnections> made = task.get_future();
  std::thread thread(std::move(task));
  const std::chrono::duration<double> limit(timeout_s + 1);
  if (made.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    fail<CommError>("{}: rank {} has no answer of the store, or of another rank, within {:.3g} s",
                    mine.caller, mine.rank, limit.count());
  }
  thread.join();
  return made.get();
}

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// @throws InvalidArgument, which begins with `caller`, if no process group has that name.
Group resolve(const char* caller, const std::string& group_name) {
  try {
    return c10d::resolve_process_group(group_name);
  } catch (const std::exception&) {
    fail<InvalidArgument>(
        "{}: no process group is named '{}'; one that was made and not destroyed is required",
        caller, group_name);
  }
}

/// @throws InvalidArgument, which begins with `caller`, if the group has no store.
void expect_store(const char* caller, const Group& group, const std::string& group_name) {
  if (group->getStore()) return;
  fail<InvalidArgument>("{}: process group '{}' has no store; one made with a store is required",
                        caller, group_name);
}

/// Whether the group has a backend for tensors of this device. PyTorch 2.11 has no call for it.
bool has_backend(const Group& group, c10::DeviceType device) {
  return std::ranges::any_of(group->getDeviceTypes(),
                             [&](const c10::Device& one) { return one.type() == device; });
}

/// @throws InvalidArgument, which begins with `caller`, for a group of PyTorch's backend `fake`:
/// its ranks are not there.
void expect_ranks(const char* caller, const Group& group, const std::string& group_name) {
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    if (!has_backend(group, device)) continue;
    if (group->getBackend(device)->getBackendName() != "fake") continue;
    fail<InvalidArgument>(
        "{}: process group '{}' has backend fake, which moves no data; a backend whose ranks meet, "
        "such as gloo, is required",
        caller, group_name);
  }
}

/// @throws InvalidArgument if the group does not send CPU tensors through Gloo.
void expect_gloo(const Group& group, const std::string& group_name) {
  const bool has_cpu = has_backend(group, c10::DeviceType::CPU);
  const std::string name =
      has_cpu ? group->getBackend(c10::DeviceType::CPU)->getBackendName() : "nothing";
  if (name == "gloo") return;
  fail<InvalidArgument>(
      "run_on_process_group: process group '{}' has {} for CPU tensors; gloo is required",
      group_name, name);
}

/// This rank, with the prefix of one more use of a process group: each rank counts its uses.
Member with_own_keys(c10d::Store& store, Member mine) {
  mine.prefix =
      fmt::format("armillary/{}/", store.add(fmt::format("armillary/uses{}", mine.rank), 1));
  return mine;
}

}  // namespace

GlooStore open_store(const C10dRendezvous& rendezvous, double timeout_s) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(rendezvous.port);
  options.isServer = rendezvous.rank == 0 && !rendezvous.store_exists;
  options.waitWorkers = false;
  options.timeout = as_timeout(timeout_s);
  if (options.isServer && rendezvous.listen_fd >= 0) options.masterListenFd = rendezvous.listen_fd;
  try {
    return c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
  } catch (const std::exception& e) {
    fail<CommError>("run_c10d_rank: rank {} {} the store at {}:{} within {:.3g} s: {}",
                    rendezvous.rank, options.isServer ? "cannot open" : "does not reach",
                    rendezvous.host, rendezvous.port, timeout_s, first_line(e));
  }
}

C10dConnections connect(const C10dRendezvous& rendezvous, const C10dOptions& options) {
  const Member mine{"run_c10d_rank", rendezvous.rank, rendezvous.world, rendezvous.key_prefix};
  const auto make = [=] {
    expect_interface(mine, options);
    const GlooStore store = open_store(rendezvous, options.timeout_s);
    std::vector<PeerProcess> processes = meet(*store, mine, options);
    return C10dConnections{store, connect_gloo(store, mine, "data/", options),
                           connect_gloo(store, mine, "control/", options), std::move(processes)};
  };
  return in_time(make, mine, options.timeout_s);
}

C10dConnections connect(const std::string& group_name, const C10dOptions& options) {
  const Group group = resolve("run_on_process_group", group_name);
  expect_gloo(group, group_name);
  expect_store("run_on_process_group", group, group_name);
  const Member mine{"run_on_process_group", group->getRank(), group->getSize(), ""};
  const auto make = [=] {
    expect_interface(mine, options);
    const GlooStore store = group->getStore();
    const Member now = with_own_keys(*store, mine);
    std::vector<PeerProcess> processes = meet(*store, now, options);
    return C10dConnections{store, group->getBackend(c10::DeviceType::CPU),
                           connect_gloo(store, now, "control/", options), std::move(processes)};
  };
  return in_time(make, mine, options.timeout_s);
}

C10dConnections connect_apart(const std::string& group_name, const C10dOptions& options) {
  const Group group = resolve("join_process_group", group_name);
  expect_ranks("join_process_group", group, group_name);
  expect_store("join_process_group", group, group_name);
  const Member mine{"join_process_group", group->getRank(), group->getSize(), ""};
  const auto make = [=] {
    expect_interface(mine, options);
    const GlooStore store = group->getStore();
    const Member now = with_own_keys(*store, mine);
    std::vector<PeerProcess> processes = meet(*store, now, options);
    return C10dConnections{store, connect_gloo(store, now, "data/", options),
                           connect_gloo(store, now, "control/", options), std::move(processes)};
  };
  return in_time(make, mine, options.timeout_s);
}

}  // namespace armillary::comm
