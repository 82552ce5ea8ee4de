// Proofs that are made once. An entry holds a promise: the thread that takes the entry fulfils it,
// and all others wait for its future. `ahead` tells whether the entry may still be taken from the
// worker.
#include "armillary/proof/proofs.h"

#include <exception>
#include <system_error>

#include "armillary/plan/strategies/strategy.h"

namespace armillary::proof {

Proofs& Proofs::of_this_process() {
  static Proofs proofs;
  return proofs;
}

Proofs::Proofs() : entries_(3072) {  // Three passes of 1,024 problems.
  // The registry is a static object that the worker uses. It is made before this one, so it is
  // destroyed after it, when the worker has ended.
  plan::strategies();
}

Proofs::~Proofs() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
}

std::shared_ptr<const PassProof> Proofs::get(const Digest& key, plan::Pass pass, const Make& make) {
  std::shared_ptr<Entry> entry;
  bool mine = true;
  {
    const std::lock_guard lock(mutex_);
    entry = find({key, pass});
    if (entry == nullptr) {
      entry = add({key, pass});
    } else {
      // A proof that the worker has not begun is made here: this thread needs it now.
      mine = entry->ahead != nullptr;
      entry->ahead = nullptr;
    }
    if (mine) ++made_;
  }
  // Without the lock: proofs of different problems are made at the same time.
  if (mine) run(*entry, make);
  return entry->proof.get();
}

void Proofs::start(const Digest& key, plan::Pass pass, Make make) {
  {
    const std::lock_guard lock(mutex_);
    if (find({key, pass}) != nullptr) return;  // Known, or being made.
    // The thread is made by the first call: most processes never need it.
    try {
      if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {  // get() makes it.
      return;
    }
    const std::shared_ptr<Entry> entry = add({key, pass});
    entry->ahead = std::move(make);
    ahead_.push_back(entry);
  }
  wake_.notify_one();
}

std::int64_t Proofs::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

std::shared_ptr<Proofs::Entry> Proofs::find(const Key& key) {
  const auto* const known = entries_.find([&](const auto& one) { return one.first == key; });
  return known == nullptr ? nullptr : known->second;
}

// A thread that has asked for the forgotten proof keeps its entry alive.
std::shared_ptr<Proofs::Entry> Proofs::add(const Key& key) {
  return entries_.add({key, std::make_shared<Entry>()}).second;
}

void Proofs::run(Entry& entry, const Make& make) {
  try {
    entry.promise.set_value(std::make_shared<const PassProof>(make()));
  } catch (...) {
    entry.promise.set_exception(std::current_exception());
  }
}

void Proofs::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stops_ || !ahead_.empty(); });
    if (stops_) return;
    const std::shared_ptr<Entry> entry = ahead_.front();
    ahead_.pop_front();
    if (!entry->ahead) continue;  // A thread that needed it at once has taken it.
    const Make make = std::exchange(entry->ahead, nullptr);
    ++made_;
    // The lock is free while the proof is made.
    lock.unlock();
    run(*entry, make);
    lock.lock();
  }
}

}  // namespace armillary::proof
