#include "armillary/comm/solo.h"

#include <mutex>
#include <optional>
#include <string>

#include "armillary/comm/peer_wait.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Nobody can be silent.
class NoPeers : public PeerWait {
 public:
  void look() override {}
};

class SoloCommunicator : public Communicator {
 public:
  SoloCommunicator() : Communicator(0, 1, 60, 8) {}

  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions /*wait*/) override {
    return std::make_unique<NoPeers>();
  }
  void throw_if_failed() override {
    const std::lock_guard lock(mutex_);
    if (reason_) throw CommError("rank 0 failed: " + *reason_);
  }
  void abort(const std::string& reason) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      if (!reason_) reason_ = reason;
    } catch (const std::exception&) {
      // No memory for the text: no peer waits for it.
    }
  }

 private:
  // No peer is in [0, 1) but this rank, so start() has refused every message.
  void do_start(std::span<const Message> batch, std::span<Request> /*requests*/) override {
    ARMILLARY_CHECK(batch.empty());
  }
  bool do_is_complete(const Pending& /*request*/) override { return true; }
  std::size_t do_wait_any(std::span<const Request> /*requests*/, double /*timeout_s*/) override {
    fail<InternalError>("wait: a message in a group of one rank");
  }

  std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_solo() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace armillary::comm
