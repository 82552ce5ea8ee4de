// folder_guard.h: a process that removes a folder if this process is killed. Internal to launch.
#pragma once

#include <sys/types.h>

#include <string>

#include "armillary/core/descriptor.h"

namespace armillary::launch {

/// The guard of a folder, which may be made later, from construction to the end of this object or
/// of this process. If the process dies first, the guard removes the folder, and what processes
/// that have it among their variables still put there.
class FolderGuard {
 public:
  /// Forks. A system that gives no process gives no guard either: the folder is then as safe as
  /// this process is.
  explicit FolderGuard(const std::string& folder);
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;
  /// Ends the guard, which leaves the folder alone.
  ~FolderGuard();

 private:
  Descriptor line_;  ///< The guard sees its other end close.
  pid_t pid_ = -1;
};

}  // namespace armillary::launch
