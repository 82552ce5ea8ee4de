// watched_communicator.h: a communicator that calls a function for every message it starts.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// Passes everything on to `inner`, which must outlive it.
class WatchedCommunicator : public Communicator {
 public:
  using See = std::function<void(const Message&)>;

  WatchedCommunicator(Communicator& inner, See see, Communicator* root = nullptr)
      : Communicator(inner.rank(), inner.world(), inner.timeout_s(), inner.lanes(), root),
        inner_(inner),
        see_(std::move(see)) {}

  /// Splits the inner communicator; the part is watched by the same function.
  std::unique_ptr<Communicator> split(int color, int key) override {
    std::unique_ptr<Communicator> part = inner_.split(color, key);
    if (part == nullptr) return nullptr;
    auto watched = std::make_unique<WatchedCommunicator>(*part, see_, &root());
    watched->owned_ = std::move(part);
    return watched;
  }
  int root_rank(int rank) const override { return &root() == this ? rank : inner_.root_rank(rank); }
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) override {
    return inner_.begin_peer_wait(std::move(wait));
  }
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override {
    for (const Message& message : batch) see_(message);
    inner_.start(batch, requests);
  }
  bool do_is_complete(const Pending& request) override {
    return inner_.is_complete(share(request));
  }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    return inner_.wait_any(requests, timeout_s);
  }
  void do_give_back(const Pending& request) override { inner_.give_back(share(request)); }

  /// A handle that does not own the request.
  static Request share(const Pending& request) { return {Request(), &request}; }

  std::unique_ptr<Communicator> owned_;  ///< the inner communicator, if split() made it
  Communicator& inner_;
  See see_;
};

}  // namespace armillary::comm
