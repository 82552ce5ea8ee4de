// proofs.h: the proofs of this process, each made once.
//
//   start(key) ---> [queue] ---> worker thread ---.
//                                                 |---> make() ---> kept, and returned by every get
//   get(key) ------> the calling thread ----------'
//
// A proof is made by the thread that first needs it, or ahead of time by the worker. Ranks that are
// threads of one process share the proofs of the process, so each is made once for all of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "armillary/core/recent.h"
#include "armillary/proof/prove.h"

namespace armillary::proof {

/// Proofs by digest_of(problem, strategy) and pass. Keeps a fixed number of them; when there are
/// more, the one that was used longest ago is forgotten, and made again if it is needed again. May
/// be used from any thread; a thread that asks for a proof which another thread is making waits for
/// it.
class Proofs {
 public:
  /// The one object of the process, which ranks use. Tests make objects of their own.
  static Proofs& of_this_process();
  Proofs();
  Proofs(const Proofs&) = delete;
  Proofs& operator=(const Proofs&) = delete;
  /// Waits for a proof that the worker is making; drops those that it has not begun.
  ~Proofs();

  using Make = std::function<PassProof()>;  ///< Makes one proof, on any thread.

  /// Returns the proof. It is made on the calling thread if no thread has begun it, also if it
  /// waits for the worker. @throws the exception of `make`, to every caller.
  std::shared_ptr<const PassProof> get(const Digest& key, plan::Pass pass, const Make& make);

  /// Has a proof made ahead of time by the worker, one thread for all, in the order of the calls.
  /// Does nothing if the proof is known already, or if no thread can be made: get() makes it then.
  void start(const Digest& key, plan::Pass pass, Make make);

  std::int64_t made() const;  ///< The number of proofs that were begun.

 private:
  using Key = std::pair<Digest, plan::Pass>;
  using Made = std::shared_ptr<const PassProof>;
  struct Entry {
    Make ahead;  ///< Set while the proof waits for the worker; empty once it has begun.
    std::promise<Made> promise;
    std::shared_future<Made> proof{promise.get_future()};
  };

  /// Null if there is none. Requires the lock, as add() does.
  std::shared_ptr<Entry> find(const Key& key);
  std::shared_ptr<Entry> add(const Key& key);
  /// Makes a proof and gives it, or the exception, to all that wait for it. Without the lock.
  static void run(Entry& entry, const Make& make);
  void work();  ///< The worker thread.

  mutable std::mutex mutex_;  ///< Guards all that follows.
  std::condition_variable wake_;
  Recent<std::pair<Key, std::shared_ptr<Entry>>> entries_;
  std::deque<std::shared_ptr<Entry>> ahead_;  ///< The queue of the worker.
  std::int64_t made_ = 0;
  bool stops_ = false;
  std::thread worker_;
};

}  // namespace armillary::proof
