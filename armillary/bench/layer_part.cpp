// A communicator around that of the rank: it answers messages of plans itself, or it has a Context
// whose device computes nothing.
#include "armillary/bench/layer_part.h"

#include <cstring>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/runtime/context.h"

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

  bool do_done(const comm::Pending& request) override {
    return is_skipped(request) || inner_.done(share(request));
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

/// The communicators of both parts, kept with that of the rank.
struct Parts {
  std::unique_ptr<comm::Communicator> compute;
  std::unique_ptr<comm::Communicator> messages;

  comm::Communicator& of(LayerPart part, comm::Communicator& inner) {
    const bool computes = part == LayerPart::Compute;
    std::unique_ptr<comm::Communicator>& found = computes ? compute : messages;
    if (found != nullptr) return *found;
    found = std::make_unique<PartCommunicator>(inner, /*skips=*/computes);
    if (!computes) runtime::Context::of(*found).use(std::make_shared<IdleDevice>());
    return *found;
  }
};

class PartRanks : public Ranks {
 public:
  PartRanks(LayerPart part, std::unique_ptr<Ranks> ranks) : part_(part), ranks_(std::move(ranks)) {}

  void start(Work work, Repeats repeats) override {
    ranks_->start([part = part_, work = std::move(work)](
                      comm::Communicator& comm) { work(comm.attachment<Parts>().of(part, comm)); },
                  repeats);
  }
  double wait() override { return ranks_->wait(); }
  bool runs(int rank) const override { return ranks_->runs(rank); }

 private:
  LayerPart part_;
  std::unique_ptr<Ranks> ranks_;
};

}  // namespace

std::unique_ptr<Ranks> with_only(LayerPart part, std::unique_ptr<Ranks> ranks) {
  return std::make_unique<PartRanks>(part, std::move(ranks));
}

}  // namespace armillary::bench
