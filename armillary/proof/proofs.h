// proofs.h: the proofs of one problem, each made once.
//
//   start(pass) ---> [queue] ---> worker of the process ---.
//                                                          |---> make(pass) ---> held here, and
//   get(pass) ------> the calling thread ------------------'                     given to every get
//
// A proof is made by the thread that first needs it, or ahead of time by the worker. This is no
// cache: proofs live as long as the object, which the programs that they are about hold
// (runtime/program_cache.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "armillary/proof/prove.h"

namespace armillary::proof {

/// The proofs of one problem, strategy and source. May be used from any thread; a thread that asks
/// for a proof which another thread is making waits for it. Held by std::shared_ptr.
class Proofs : public std::enable_shared_from_this<Proofs> {
 public:
  using Make = std::function<PassProof(plan::Pass)>;  ///< Makes one proof, on any thread.

  explicit Proofs(Make make) : make_(std::move(make)) {}

  /// Returns the proof. It is made on the calling thread if no thread has begun it, also if it
  /// waits for the worker. @throws the exception of `make`, to every caller.
  std::shared_ptr<const PassProof> get(plan::Pass pass);

  /// Has a proof made ahead of time by the worker, one thread of the process, in the order of the
  /// calls. Not made are those whose object is gone by then. Does nothing if the proof is there, or
  /// if no thread can be made: get() makes it then.
  void start(plan::Pass pass);

  static std::int64_t count();  ///< The number of proofs that this process has begun.

 private:
  using Made = std::shared_ptr<const PassProof>;
  struct OnePass {
    std::atomic<bool> is_queued = false;  ///< The worker has been asked for it.
    std::atomic<bool> has_begun = false;  ///< A thread makes it, or has made it.
    std::promise<Made> promise;
    std::shared_future<Made> proof{promise.get_future()};
  };

  OnePass& of(plan::Pass pass);
  /// Makes a proof that no thread has begun, for all that wait for it.
  void make_once(plan::Pass pass);

  const Make make_;
  std::array<OnePass, kPasses.size()> passes_;
};

}  // namespace armillary::proof
