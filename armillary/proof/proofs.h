// proofs.h: the proofs of this process, each made once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "armillary/proof/prove.h"

namespace armillary::proof {

/// By digest_of(problem, strategy) and pass. Keeps the most recent ones. Threads: any; who asks for
/// a proof that another thread is making waits for it.
class Proofs {
 public:
  static Proofs& of_this_process();
  Proofs();
  Proofs(const Proofs&) = delete;
  Proofs& operator=(const Proofs&) = delete;
  ~Proofs();  ///< Waits for a proof that is being made ahead; drops those that have not begun.

  using Make = std::function<PassProof()>;

  /// The proof, made on the calling thread if nobody has begun it. @throws what `make` throws.
  std::shared_ptr<const PassProof> get(const Digest& key, plan::Pass pass, const Make& make);

  /// Has it made ahead: on one thread for all, in the order of the calls. Where no thread can be
  /// had, nothing: get() makes it.
  void start(const Digest& key, plan::Pass pass, Make make);

  std::int64_t made() const;  ///< Proofs that were begun.

 private:
  using Key = std::pair<Digest, plan::Pass>;
  using Made = std::shared_ptr<const PassProof>;
  struct Entry {
    Make ahead;  ///< Of one that waits for the thread; empty once it has begun.
    std::promise<Made> promise;
    std::shared_future<Made> proof{promise.get_future()};
  };

  std::shared_ptr<Entry> add(const Key& key);
  static void run(Entry& entry, const Make& make);
  void work();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  std::deque<Key> order_;                     ///< The oldest first.
  std::deque<std::shared_ptr<Entry>> ahead_;  ///< The first to be made first.
  std::int64_t made_ = 0;
  bool stops_ = false;
  std::thread worker_;
};

}  // namespace armillary::proof
