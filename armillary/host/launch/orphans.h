// orphans.h: processes whose parent has ended before them.
#pragma once

namespace armillary::launch {

/// While it lives, descendants of this process whose parents end become children of this process
/// instead of the system's first, so that none of them can be overlooked. One at a time.
class Orphans {
 public:
  Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;
  ~Orphans();

  /// Kills all children of this process, and theirs, and returns when they have ended; after two
  /// seconds at the latest.
  void end_all() const;
};

}  // namespace armillary::launch
