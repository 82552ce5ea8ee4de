// run_lock.h: the lock of a run folder, so that two runs do not write into one at the same time.
//
//   RUN/lock    "HOST PID" of the run that holds it (flock); removed at its end
//
// The system frees the lock when its process ends, however that is: a file that a killed run has
// left locks nothing. Ranks outlive a launcher that was killed by some milliseconds, so a lock that
// is held is tried again for 2 s.
#pragma once

#include <string>

#include "armillary/core/descriptor.h"

namespace armillary::io {

/// Holds the lock from construction to destruction. Programs that do not ask for it are not
/// hindered. On file systems without locks it holds nothing, and nobody is refused.
class RunLock {
 public:
  /// Makes the folder if it is missing. @throws IoError if another run still holds the lock after
  /// 2 s, with its host and pid, or if the file cannot be made; both name the path.
  explicit RunLock(const std::string& folder);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  /// Opens and locks the file. Returns whether it did: not if another run holds it, or if the file
  /// was removed meanwhile, as then it is no lock.
  bool take();

  std::string path_;
  Descriptor file_;
};

}  // namespace armillary::io
