// still_communicator.h: ranks whose messages move nothing for a while, for the time of a training
// step without them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::bench {

/// A way to treat messages.
enum class MessageMode : std::uint8_t {
  Move,
  Pace,  ///< They are of no bytes, so that ranks wait for each other's compute alone.
  Rest,  ///< They are over as soon as they start.
};

/// Passes everything on to `inner`, which must outlive it. Unless messages move, what would be
/// received is zero, and the time to clear it is that of the rank. All ranks change at the same
/// time, with no message under way. Threads: that of the rank.
class StillCommunicator : public comm::Communicator {
 public:
  explicit StillCommunicator(comm::Communicator& inner)
      : Communicator(inner.rank(), inner.world(), inner.timeout_s(), inner.lanes()),
        inner_(inner) {}

  void set_mode(MessageMode mode) { mode_ = mode; }

  /// Groups made of it are those of `inner`, whose messages move.
  std::unique_ptr<comm::Communicator> split(int color, int key) override;
  std::unique_ptr<comm::PeerWait> begin_peer_wait(comm::PeerWaitOptions wait) override;
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  void do_start(std::span<const comm::Message> batch, std::span<comm::Request> requests) override;
  bool do_is_complete(const comm::Pending& request) override;
  std::size_t do_wait_any(std::span<const comm::Request> requests, double timeout_s) override;
  void do_give_back(const comm::Pending& request) override;

  comm::Communicator& inner_;
  MessageMode mode_ = MessageMode::Move;
};

}  // namespace armillary::bench
