// groups.cpp: the registry of communicators. A group is locked while it is used; the registry only
// while a group is looked up.
#include "python/src/groups.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

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

/// A group that was used. `comm` is null before the first use and after a failure.
struct Member {
  explicit Member(const Strong& group) : group(group), id(id_of(group)) {}
  const Weak group;
  const std::uintptr_t id;
  std::mutex mutex;  ///< Held during a use; guards `comm`.
  std::unique_ptr<comm::Communicator> comm;
};

struct Registry {
  const pid_t process = getpid();
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Member>> members;
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

/// The member of a group, a new one if the process group is not that of the last use.
std::shared_ptr<Member> find(const std::string& name) {
  const Strong group = name.empty() ? Strong() : resolve(name);
  std::shared_ptr<Member> stale;  // Closed after the lock is free.
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Member>& member = all.members[name];
  if (member && (name.empty() || member->group.lock() == group)) return member;
  stale = std::exchange(member, std::make_shared<Member>(group));
  return member;
}

bool has_failed(comm::Communicator& comm) {
  try {
    comm.throw_if_failed();
    return false;
  } catch (const CommError&) {
    return true;
  }
}

std::unique_ptr<comm::Communicator> join(const GroupUse& use) {
  if (use.name.empty()) return comm::make_solo();
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");  // As PyTorch's own groups do.
  const std::string first = interface ? interface : "";
  return comm::join_process_group(
      use.name, {.timeout_s = use.timeout_s, .interface = first.substr(0, first.find(','))});
}

}  // namespace

void on_group(const GroupUse& use, const std::function<void(comm::Communicator&)>& action) {
  const std::shared_ptr<Member> member = find(use.name);
  const std::lock_guard lock(member->mutex);
  if (!member->comm) member->comm = join(use);
  try {
    action(*member->comm);
  } catch (...) {
    if (has_failed(*member->comm)) member->comm.reset();
    throw;
  }
}

GroupSize size_of_group(const std::string& name) {
  if (name.empty()) return {};
  const Strong group = resolve(name);
  return {group->getRank(), group->getSize(), id_of(group)};
}

void leave_groups() {
  std::map<std::string, std::shared_ptr<Member>> left;  // Closed after the lock is free.
  const std::lock_guard lock(registry().mutex);
  left.swap(registry().members);
}

void leave_group(const std::string& name, std::uintptr_t id) {
  std::shared_ptr<Member> left;  // Closed after the lock is free.
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.members.find(name);
  if (found == all.members.end() || found->second->id != id) return;
  left = std::move(found->second);
  all.members.erase(found);
}

}  // namespace armillary::python
