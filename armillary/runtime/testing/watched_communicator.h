// watched_communicator.h: a communicator for tests that calls a function for every message it
// starts.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/communicator.h"

namespace armillary::runtime {

/// Passes everything on to `inner`, which must outlive it.
class WatchedCommunicator : public comm::Communicator {
 public:
  using See = std::function<void(const comm::Message&)>;

  WatchedCommunicator(comm::Communicator& inner, See see)
      : Communicator(inner.rank(), inner.world(), inner.timeout_s(), inner.lanes()),
        inner_(inner),
        see_(std::move(see)) {}

  /// Splits the inner communicator; the part is watched by the same function.
  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    std::unique_ptr<comm::Communicator> part = inner_.split(color, key);
    if (part == nullptr) return nullptr;
    auto watched = std::make_unique<WatchedCommunicator>(*part, see_);
    watched->owned_ = std::move(part);
    return watched;
  }
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  void do_start(std::span<const comm::Message> batch, std::span<comm::Request> requests) override {
    for (const comm::Message& message : batch) see_(message);
    inner_.start(batch, requests);
  }
  bool do_done(const comm::Pending& request) override { return inner_.done(share(request)); }
  std::size_t do_wait_any(std::span<const comm::Request> requests, double timeout_s) override {
    return inner_.wait_any(requests, timeout_s);
  }
  void do_give_back(const comm::Pending& request) override { inner_.give_back(share(request)); }

  /// A handle that does not own the request.
  static comm::Request share(const comm::Pending& request) { return {comm::Request(), &request}; }

  std::unique_ptr<comm::Communicator> owned_;  ///< the inner communicator, if split() made it
  comm::Communicator& inner_;
  See see_;
};

/// Whether a message carries a part of a tile. Lanes of plans are those between the lane of
/// collectives and the last lane, which agreement uses.
inline bool is_of_a_plan(const comm::Communicator& comm, const comm::Message& message) {
  return message.lane > comm::kCollectiveLane && message.lane < comm.lanes() - 1;
}

}  // namespace armillary::runtime
