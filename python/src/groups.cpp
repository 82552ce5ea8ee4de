// groups.cpp: the registry of communicators. A group is locked while it is used; the registry only
// while a group is looked up.
#include "python/src/groups.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/solo.h"
#include "armillary/core/error.h"

namespace armillary::python {
namespace {

using Weak = c10::weak_intrusive_ptr<c10d::ProcessGroup>;
using Strong = c10::intrusive_ptr<c10d::ProcessGroup>;

std::uintptr_t id_of(const Strong& group) {
  return reinterpret_cast<std::uintptr_t>(group.get());
}

using Clock = std::chrono::steady_clock;

// Longest wait of a rank that failed, for the others to hear of it.
constexpr double kTelling = 10;  // seconds

/// A group that was used. `comm` is null before the first use and after a failure.
struct GroupMember {
  explicit GroupMember(const Strong& group) : group(group), id(id_of(group)) {}
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;
  ~GroupMember() { drop("armillary: the group of the call was left"); }
  const Weak group;
  const std::uintptr_t id;
  std::mutex mutex;  ///< Held during a use; guards all that follows.
  std::unique_ptr<comm::Communicator> comm;
  comm::JoinedCommunicator* joined = nullptr;            ///< `comm`, but for a group of one rank.
  std::shared_ptr<attention::AttentionInProgress> call;  ///< The one that is in progress.

  /// `reason`: why a call that is in progress ends.
  void drop(const std::string& reason) {
    if (call) call->drop(reason);
    call.reset();
    joined = nullptr;
    comm.reset();
  }
};

struct Registry {
  const pid_t process = getpid();
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<GroupMember>> members;
};

/// The registry of this process. A forked child starts with an empty one: the threads of the
/// parent's communicators do not exist here, so those are left as they are.
Registry& registry() {
  static std::mutex mutex;
  static Registry* current = new Registry;  // Never destroyed: exit() may run while it is used.
  const std::lock_guard lock(mutex);
  if (current->process != getpid()) current = new Registry;
  return *current;
}

Strong resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception&) {
    fail<InvalidArgument>(
        "armillary: no process group is named '{}'; one that was made and not destroyed is "
        "required",
        name);
  }
}

/// Groups that were made before this process was forked. Written before the process has threads.
std::vector<Weak>& inherited() {
  static auto* const groups = new std::vector<Weak>;  // As the registry.
  return *groups;
}

void expect_own(const Strong& group, const std::string& name) {
  const auto is_it = [&](const Weak& other) { return other.lock() == group; };
  if (std::ranges::none_of(inherited(), is_it)) return;
  fail<InvalidArgument>(
      "armillary: process {} was forked after the process group '{}' was made, which is its "
      "parent's; a process that was spawned, or forked before init_process_group, with a group of "
      "its own, is required",
      getpid(), name);
}

/// The member of a group, a new one if the process group is not that of the last use.
std::shared_ptr<GroupMember> find(const std::string& name) {
  const Strong group = name.empty() ? Strong() : resolve(name);
  if (group) expect_own(group, name);
  std::shared_ptr<GroupMember> stale;  // Closed after the lock is free.
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<GroupMember>& member = all.members[name];
  if (member && (name.empty() || member->group.lock() == group)) return member;
  stale = std::exchange(member, std::make_shared<GroupMember>(group));
  return member;
}

/// The text of the failure of a group; empty if it has not failed.
std::string failure_of(comm::Communicator& comm) {
  try {
    comm.throw_if_failed();
    return "";
  } catch (const CommError& error) {
    return error.what();
  }
}

std::unique_ptr<comm::JoinedCommunicator> joined_to(const GroupUse& use) {
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");  // As PyTorch's own groups do.
  const std::string first = interface ? interface : "";
  return comm::join_process_group(
      use.name, {.timeout_s = use.timeout_s, .interface = first.substr(0, first.find(','))});
}

void join(GroupMember& member, const GroupUse& use) {
  if (use.name.empty()) {
    member.comm = comm::make_solo();
    return;
  }
  std::unique_ptr<comm::JoinedCommunicator> joined = joined_to(use);
  member.joined = joined.get();
  member.comm = std::move(joined);
}

/// Joins the group if this rank has no end of it, or one that the others have left.
void join_if_left(GroupMember& member, const GroupUse& use) {
  std::string before;
  if (member.joined != nullptr && member.joined->is_left()) {
    before = failure_of(*member.comm);
    member.drop(before);
  }
  if (member.comm) return;
  try {
    join(member, use);
  } catch (const CommError& error) {
    if (before.empty()) throw;
    fail<CommError>("{}; in the call before, {}", error.what(), before);
  }
}

/// The text that ends a call of a group that has failed: the reason of another rank without the
/// message that this one waited for, which has no part in it; else nothing.
std::string reason_of_peer(GroupMember& member) {
  const bool is_told = member.joined != nullptr && member.joined->is_told();
  return is_told ? failure_of(*member.comm) : "";
}

/// Ends a call in which the group failed.
void drop_failed(GroupMember& member, const GroupUse& use, Clock::time_point begin) {
  if (member.joined != nullptr) {
    const std::chrono::duration<double> spent = Clock::now() - begin;
    member.joined->wait_told(std::min(use.timeout_s - spent.count(), kTelling));
  }
  member.drop(failure_of(*member.comm));
}

/// Whether a use goes on with the call that is in progress. @throws CommError if that was dropped.
bool goes_on_with_call(const GroupMember& member, const GroupUse& use) {
  if (!use.call) return false;
  use.call->check_in_progress();
  if (member.call == use.call) return true;
  fail<InvalidArgument>(
      "attention: the group was left while the call was in progress; begin another one");
}

/// Ends the call that is in progress, for another use has come.
void refuse_beside_call(GroupMember& member) {
  const std::string failure = failure_of(*member.comm);
  if (!failure.empty()) throw CommError(failure);
  const std::string text = fmt::format(
      "attention: another call is in progress on rank {}; finish it, or drop it, before the next "
      "begins",
      member.comm->rank());
  member.comm->abort(text);
  throw InvalidArgument(text);
}

/// The use of a member whose mutex is held. `goes_on`: with the call that is in progress.
void use_member(GroupMember& member, const GroupUse& use, bool goes_on,
                const std::function<void(comm::Communicator&)>& action) {
  const Clock::time_point begin = Clock::now();
  if (member.call && member.call->is_over()) member.call.reset();
  const bool is_beside = member.call && !goes_on;
  if (!member.call) join_if_left(member, use);
  const bool has_failed = !failure_of(*member.comm).empty();
  const bool is_timeout = use.timeout_s > 0 && use.timeout_s <= 1e9;  // Else the action refuses it.
  try {
    if (is_beside) refuse_beside_call(member);
    if (!has_failed && is_timeout) member.comm->set_timeout(use.timeout_s);
    action(*member.comm);
  } catch (const CommError&) {
    const std::string reason = reason_of_peer(member);
    if (!failure_of(*member.comm).empty()) drop_failed(member, use, begin);
    if (!reason.empty()) throw CommError(reason);
    throw;
  } catch (...) {
    if (!failure_of(*member.comm).empty()) drop_failed(member, use, begin);
    throw;
  }
}

}  // namespace

void on_group(const GroupUse& use, const std::function<void(comm::Communicator&)>& action) {
  const std::shared_ptr<GroupMember> member = find(use.name);
  const std::lock_guard lock(member->mutex);
  use_member(*member, use, goes_on_with_call(*member, use), action);
}

std::shared_ptr<attention::AttentionInProgress> begin_on_group(const GroupUse& use,
                                                               const Begin& begin) {
  const std::shared_ptr<GroupMember> member = find(use.name);
  const std::lock_guard lock(member->mutex);
  use_member(*member, use, false, [&](comm::Communicator& comm) {
    member->call = std::make_shared<attention::AttentionInProgress>(begin(comm));
  });
  return member->call;
}

void refuse_on_group(const GroupUse& use, const std::string& text) {
  const GroupUse told{
      .name = use.name, .timeout_s = std::min(use.timeout_s, kTelling), .call = use.call};
  try {
    const std::shared_ptr<GroupMember> member = find(use.name);
    const std::lock_guard lock(member->mutex);
    const bool goes_on = !use.call || goes_on_with_call(*member, use);
    use_member(*member, told, goes_on, [&](comm::Communicator& comm) {
      comm.abort(text);
      throw InvalidArgument(text);
    });
  } catch (const CommError&) {
    // The others did not come to hear it.
  }
  throw InvalidArgument(text);
}

std::unique_ptr<comm::Communicator> join_group(const GroupUse& use) {
  expect_own(resolve(use.name), use.name);
  return joined_to(use);
}

void inherit_groups(const std::vector<std::string>& names) {
  inherited().clear();
  for (const std::string& name : names) inherited().emplace_back(resolve(name));
}

GroupSize size_of_group(const std::string& name) {
  if (name.empty()) return {};
  const Strong group = resolve(name);
  return {group->getRank(), group->getSize(), id_of(group)};
}

void leave_groups() {
  std::map<std::string, std::shared_ptr<GroupMember>> left;  // Closed after the lock is free.
  const std::lock_guard lock(registry().mutex);
  left.swap(registry().members);
}

void leave_group(const std::string& name, std::uintptr_t id) {
  std::shared_ptr<GroupMember> left;  // Closed after the lock is free.
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto entry = all.members.find(name);
  if (entry == all.members.end() || entry->second->id != id) return;
  left = std::move(entry->second);
  all.members.erase(entry);
}

}  // namespace armillary::python
