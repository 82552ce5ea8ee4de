// failing_ranks.h: groups that fail, for the tests of this folder.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>

#include "armillary/comm/local.h"
#include "armillary/comm/spin_until.h"

namespace armillary::comm {

/// What run_ranks() throws; empty if nothing.
inline std::string error_text(int world, const std::function<void(Communicator&)>& body,
                              const LocalOptions& options = {}) {
  try {
    run_ranks(world, body, options);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

/// Holds up the unwinding of a rank, after the requests declared behind it are gone.
struct Holdup {
  std::atomic<bool>& reached;
  const std::atomic<bool>& go;
  ~Holdup() {
    reached = true;
    spin_until(go);
  }
};

}  // namespace armillary::comm
