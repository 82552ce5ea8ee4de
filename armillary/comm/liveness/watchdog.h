// watchdog.h: a thread that watches the waits of a rank, for engines whose waits cannot look at the
// clock themselves. Internal to the engines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/liveness/peer_process.h"
#include "armillary/comm/peer_wait.h"

namespace armillary::comm {

/// The engine. The functions are called by the watchdog's thread and must not call it.
struct WatchdogHooks {
  std::function<void(int rank)> ask;  ///< Asks a rank; its answer goes to hear().
  std::function<void(const std::string& reason)> expired;
  std::function<std::string(int rank)> name;
};

/// Asks the ranks that a wait depends on how far they are, and tells if one is silent for the
/// timeout. One wait at a time.
class Watchdog {
 public:
  /// The world is that of `processes`.
  Watchdog(int rank, const std::vector<PeerProcess>& processes, OwnHeartbeat& heartbeat,
           WatchdogHooks hooks);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /// The rank waits for messages as long as this lives, or for all others to leave. `describe`
  /// tells for what.
  class Waiting {
   public:
    Waiting(Watchdog& watchdog, std::span<const Request> requests, double timeout_s,
            const std::function<std::string()>& describe);
    Waiting(Watchdog& watchdog, double timeout_s);
    /// For these peers. The options must outlive it.
    Waiting(Watchdog& watchdog, const PeerWaitOptions& options);
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting();

   private:
    Watchdog& watchdog_;
  };

  /// The answer of a rank has come. Called by any thread.
  void hear(int rank, const Heartbeat& heartbeat);

 private:
  using Clock = std::chrono::steady_clock;

  struct Current {
    Clock::time_point begin;
    double timeout_s = 60;
    std::span<const Request> requests;
    const std::function<std::string()>* describe = nullptr;  ///< Null: for all others to leave.
    const std::vector<int>* peers = nullptr;                 ///< Null: those of the requests.
  };

  void begin(const Current& current);
  void run();
  /// Looks at the present wait; returns the text of a missed deadline, once.
  std::optional<std::string> look();
  std::string text_of_expiry() const;

  const int rank_;
  const int world_;
  OwnHeartbeat& heartbeat_;
  const WatchdogHooks hooks_;
  StopsOfProcesses stops_;  ///< Used by the thread alone.
  std::mutex mutex_;        ///< Guards all that follows.
  std::condition_variable changed_;
  bool closing_ = false;
  std::optional<Current> current_;
  std::optional<LongWait> wait_;  ///< Made when the present wait has lasted for a while.
  bool told_ = false;             ///< The present wait has expired.
  std::thread thread_;
};

}  // namespace armillary::comm
