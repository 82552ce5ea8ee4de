// failing_ranks.h: for tests: groups of ranks that fail.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>

#include "armillary/comm/local.h"
#include "armillary/comm/testing/spin_until.h"

namespace armillary::comm {

/// The text of the exception that run_ranks() throws; empty if it throws none.
inline std::string error_text(int world, const std::function<void(Communicator&)>& body,
                              const LocalOptions& options = {}) {
  try {
    run_ranks(world, body, options);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

/// Holds up the unwinding of a rank, after the requests that are declared behind it are gone: sets
/// `reached`, then waits for `go`.
struct Holdup {
  std::atomic<bool>& reached;
  const std::atomic<bool>& go;
  ~Holdup() {
    reached = true;
    spin_until(go);
  }
};

}  // namespace armillary::comm
