// folder_guard.h: a process that removes a folder if this process is killed. Internal to launch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "armillary/core/descriptor.h"

namespace armillary::launch {

/// The guard of a folder, which may be made later, from construction to the end of this object or
/// of this process. If the process dies first, the guard removes the folder, and what processes
/// that have it among their variables still put there. It waits for their end, but not for ever:
/// then it names the one that is left, in the system's log and on the terminal, if there is one. It
/// holds neither the terminal nor any other stream.
class FolderGuard {
 public:
  /// Forks. A system that gives no process gives no guard either: the folder is then as safe as
  /// this process is.
  explicit FolderGuard(const std::string& folder,
                       std::chrono::seconds patience = std::chrono::minutes(10));
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;
  /// Ends the guard, which leaves the folder alone. One that does not end is killed after 5 s.
  ~FolderGuard();

 private:
  Descriptor line_;  ///< The guard sees its other end close.
  pid_t pid_ = -1;
};

}  // namespace armillary::launch
