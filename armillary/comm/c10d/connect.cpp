// Making a group. The store of PyTorch has timeouts for what it waits for, but none for an answer
// of a server that is stopped; so everything runs on a thread of its own, which is left behind if
// it does not end in time.
#include "armillary/comm/c10d/connect.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "armillary/comm/c10d/meeting.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

std::chrono::milliseconds as_timeout(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * seconds) + 1);
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
  std::future<C10dConnections> result = task.get_future();
  std::thread thread(std::move(task));
  const std::chrono::duration<double> limit(timeout_s + 1);
  if (result.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    fail<CommError>("{}: rank {} has no answer of the store, or of another rank, within {:.3g} s",
                    mine.caller, mine.rank, limit.count());
  }
  thread.join();
  return result.get();
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

/// This process in a process group. Meetings for different callers have keys of their own.
Member member_of(const char* caller, const Group& group) {
  return {caller, group->getRank(), group->getSize(), fmt::format("armillary/{}/", caller)};
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
  const Member mine = member_of("run_on_process_group", group);
  const auto make = [=] {
    expect_interface(mine, options);
    const GlooStore store = group->getStore();
    Member now = mine;
    std::vector<PeerProcess> processes = meet_again(*store, now, options);
    return C10dConnections{store, group->getBackend(c10::DeviceType::CPU),
                           connect_gloo(store, now, "control/", options), std::move(processes)};
  };
  return in_time(make, mine, options.timeout_s);
}

C10dConnections connect_apart(const std::string& group_name, const C10dOptions& options) {
  const Group group = resolve("join_process_group", group_name);
  expect_ranks("join_process_group", group, group_name);
  expect_store("join_process_group", group, group_name);
  const Member mine = member_of("join_process_group", group);
  const auto make = [=] {
    expect_interface(mine, options);
    const GlooStore store = group->getStore();
    Member now = mine;
    std::vector<PeerProcess> processes = meet_again(*store, now, options);
    return C10dConnections{store, connect_gloo(store, now, "data/", options),
                           connect_gloo(store, now, "control/", options), std::move(processes)};
  };
  return in_time(make, mine, options.timeout_s);
}

}  // namespace armillary::comm
