// heartbeat.h: tells a rank that computes for long from one that is silent. Internal to the
// engines.
//
//   rank 0 waits --ask--> rank 1 waits for 2 --> so rank 0 asks rank 2 as well
//                <-answer- "I wait for 2"
//                <-answer- of rank 2: "I compute", and later "I compute, and got further"
//
// A rank is asked beside the data, so it answers while it computes. It makes progress while it uses
// a core outside of its waits, when a wait ends, and when a message of its own is done. During a
// wait it makes none: it is as far as those that it waits for. So ranks that wait in a cycle keep
// nobody alive, nor does one that is stopped, gone, asleep or out of reach. A process of this
// machine is seen to be stopped; that counts from the first look at it, also before anybody waited.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// The answer of a rank.
struct Heartbeat {
  std::uint64_t progress = 0;  ///< More than in an earlier answer: it has got further.
  bool left = false;           ///< It has ended its body, and sends no more messages.
  std::vector<int> waits_for;  ///< Ranks of the messages that it waits for; none while it computes.
};

/// A heartbeat as bytes of a notice, with the first 240 ranks that it waits for.
using HeartbeatBytes = std::array<char, 1016>;
HeartbeatBytes to_bytes(const Heartbeat& heartbeat);
Heartbeat heartbeat_of(const HeartbeatBytes& bytes);

inline double seconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// The ranks of the messages that are not done, each once, ascending.
std::vector<int> peers_of(std::span<const Request> requests);

/// The heartbeat of this rank. Functions may be called from any thread.
class OwnHeartbeat {
 public:
  /// `used_s` tells the seconds of cores that the rank has used: of its process, or of its thread.
  explicit OwnHeartbeat(std::function<double()> used_s);

  /// A message of this rank is done. Cost: one atomic addition.
  void message_done() { messages_.fetch_add(1, std::memory_order_relaxed); }
  /// The rank waits from now on, until end_wait().
  void begin_wait(std::vector<int> peers);
  void end_wait();
  /// The rank has ended its body.
  void leave();
  /// The answer to whoever asks now.
  Heartbeat take();

 private:
  const std::function<double()> used_s_;
  std::atomic<std::uint64_t> messages_{0};
  std::mutex mutex_;  ///< Guards all that follows.
  bool waits_ = false;
  std::vector<int> waits_for_;
  bool left_ = false;
  /// Looks at which the rank had used a core since the one before, and waits that ended.
  std::uint64_t computed_ = 0;
  double looked_at_s_ = 0;
  double used_then_s_ = 0;
};

/// A wait for messages of `peers`, or for all of `peers` to leave, which begins at `now_s`.
enum class WatchFor : std::uint8_t { Messages, Leaving };

/// One wait.
struct WatchOptions {
  int rank = 0;
  std::vector<int> peers;
  double timeout_s = 60;
  WatchFor what = WatchFor::Messages;
};

/// One wait of this rank with a deadline: whom to ask, and whether a peer is silent. Threads: one
/// at a time.
class Watch {
 public:
  Watch(WatchOptions options, double now_s);

  /// Seconds between two looks: an eighth of the timeout, from 0.01 to 0.25.
  static double interval_of(double timeout_s);

  /// Time goes on. Time in which this process did not run, because it was stopped too, does not
  /// count. Returns the ranks that are to be asked now.
  std::vector<int> tick(double now_s);
  /// An answer has come.
  void hear(int rank, const Heartbeat& heartbeat);
  /// The ranks whose processes are seen to be stopped, and since when, on the clock of tick(). They
  /// get no further, whatever ranks do that they wait for. `now_s` is that of the last tick().
  void see_stopped(const std::map<int, double>& since_s, double now_s);
  /// A peer without progress for the timeout, by itself and through those that it waits for.
  bool expired() const { return silent_peer().has_value(); }
  /// The rank that is to blame if expired(): of those that the silent peer waits for, one that is
  /// stopped, or else one that does not answer, or else one that waits for nobody. Nothing if they
  /// wait in a cycle.
  std::optional<int> culprit() const;
  /// Whether there is one, and it does not answer: it is stopped, gone, or out of reach.
  bool culprit_is_lost() const;
  /// The end of the text of a missed deadline: "; rank 2 does not answer", "; rank 2 has ended its
  /// part", ..
  std::string reason(const std::function<std::string(int)>& name) const;

 private:
  struct PeerKnowledge {
    bool answered = false;
    Heartbeat heartbeat;
    double progress_s = 0;  ///< The last progress, or the begin of the wait.
    double answer_s = 0;
    double asked_s = -1;  ///< Negative: never.
    /// Its process has been stopped since then; before the begin of the wait if negative.
    std::optional<double> stopped_s;
  };

  const PeerKnowledge& known(int rank) const;
  /// The rank and all that it waits for, directly or not; this rank too.
  std::vector<int> reachable(int from) const;
  std::optional<int> silent_peer() const;
  /// When the peer got further last, by itself or through a rank that it waits for.
  double progress_of(int peer) const;
  bool answers(int rank) const;

  WatchOptions options_;
  double interval_s_;
  double last_tick_s_;
  double time_s_ = 0;  ///< Since the begin, without the time in which this process did not run.
  std::map<int, PeerKnowledge> known_;
};

/// A wait that has lasted for long: the rank says so to those that ask, as long as this lives.
class LongWait {
 public:
  LongWait(OwnHeartbeat& heartbeat, const WatchOptions& options, double now_s)
      : watch(options, now_s), heartbeat_(heartbeat) {
    heartbeat_.begin_wait(options.peers);
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;
  ~LongWait() { heartbeat_.end_wait(); }

  Watch watch;

 private:
  OwnHeartbeat& heartbeat_;
};

}  // namespace armillary::comm
