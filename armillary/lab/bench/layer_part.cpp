// A communicator around that of the rank: it answers messages of plans itself, or it has a
// runtime::Rank whose device computes nothing.
#include "armillary/lab/bench/layer_part.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/runtime/rank.h"

namespace armillary::bench {
namespace {

/// A message that was over when it started.
class Skipped : public comm::Pending {
 public:
  explicit Skipped(const comm::Message& message)
      : Pending(message, comm::total_bytes(message.parts)) {}
};

bool is_skipped(const comm::Pending& request) {
  return dynamic_cast<const Skipped*>(&request) != nullptr;
}

/// Passes everything on but, if `skips`, the messages of plans. Their lanes are those between that
/// of collectives and the last, which agreement uses.
class PartCommunicator : public comm::Communicator {
 public:
  PartCommunicator(comm::Communicator& inner, bool skips)
      : Communicator(inner.rank(), inner.world(), inner.timeout_s(), inner.lanes()),
        inner_(inner),
        skips_(skips) {}

  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    return inner_.split(color, key);
  }
  std::unique_ptr<comm::PeerWait> begin_peer_wait(comm::PeerWaitOptions wait) override {
    return inner_.begin_peer_wait(std::move(wait));
  }
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  bool is_of_a_plan(const comm::Message& message) const {
    return message.lane > comm::kCollectiveLane && message.lane < lanes() - 1;
  }

  // A batch is of one lane, so all of its messages are skipped or none.
  void do_start(std::span<const comm::Message> batch, std::span<comm::Request> requests) override {
    if (!skips_ || batch.empty() || !is_of_a_plan(batch.front())) {
      return inner_.start(batch, requests);
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      requests[i] = std::make_shared<Skipped>(batch[i]);
      if (batch[i].direction == comm::Direction::Receive) clear(batch[i]);
    }
  }

  /// Clears the memory of a receive. It may hold anything: slots serve several tiles, and those of
  /// forward and backward are the same memory. Results that are taken for inputs differ from call
  /// to call and may grow up to NaN, on which kernels are slower.
  static void clear(const comm::Message& message) {
    for (const comm::Strided& part : message.parts) {
      for (std::int64_t row = 0; row < part.rows; ++row) {
        std::memset(part.data + row * part.stride_bytes, 0,
                    static_cast<std::size_t>(part.row_bytes));
      }
    }
  }

  bool do_is_complete(const comm::Pending& request) override {
    return is_skipped(request) || inner_.is_complete(share(request));
  }
  std::size_t do_wait_any(std::span<const comm::Request> requests, double timeout_s) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] && is_skipped(*requests[i])) return i;
    }
    return inner_.wait_any(requests, timeout_s);
  }
  void do_give_back(const comm::Pending& request) override { inner_.give_back(share(request)); }

  /// A handle that does not own the request.
  static comm::Request share(const comm::Pending& request) { return {comm::Request(), &request}; }

  comm::Communicator& inner_;
  bool skips_;
};

/// A CPU whose ops are over when they start.
class IdleDevice : public runtime::Device {
 public:
  at::Device place() const override { return at::kCPU; }
  runtime::EventHandle start(plan::Lane /*lane*/, runtime::Work& /*work*/, int /*op*/) override {
    return nullptr;
  }
  void drain(const runtime::Work& /*work*/) noexcept override {}

 private:
  bool is_done(const runtime::Event& /*event*/) override { return true; }
  bool wait_for(const runtime::Event& /*event*/, double /*seconds*/) override { return true; }
};

class PartRanks : public Ranks {
 public:
  PartRanks(LayerPart part, int world, std::unique_ptr<Ranks> ranks)
      : part_(part), parts_(static_cast<std::size_t>(world)), ranks_(std::move(ranks)) {}

  void start(Work work, Repeats repeats) override {
    ranks_->start([this, work = std::move(work)](comm::Communicator& comm) { work(part_of(comm)); },
                  repeats);
  }
  double wait() override { return ranks_->wait(); }
  bool runs(int rank) const override { return ranks_->runs(rank); }

 private:
  /// The communicator of the part, kept from one work to the next. Called on the rank's thread.
  comm::Communicator& part_of(comm::Communicator& inner) {
    std::unique_ptr<comm::Communicator>& result = parts_[inner.rank()];
    if (result != nullptr) return *result;
    const bool computes = part_ == LayerPart::Compute;
    result = std::make_unique<PartCommunicator>(inner, /*skips=*/computes);
    if (!computes) runtime::Rank::of(*result).use(std::make_shared<IdleDevice>());
    return *result;
  }

  LayerPart part_;
  std::vector<std::unique_ptr<comm::Communicator>> parts_;  ///< By rank.
  std::unique_ptr<Ranks> ranks_;                            ///< Last: its threads use the above.
};

}  // namespace

std::unique_ptr<Ranks> with_only(LayerPart part, int world, std::unique_ptr<Ranks> ranks) {
  return std::make_unique<PartRanks>(part, world, std::move(ranks));
}

}  // namespace armillary::bench
