#include "armillary/attention/agreement.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"

namespace armillary::attention {

namespace {

/// Throws what the record of the rank before has and mine has not.
[[noreturn]] void refuse(const CallRecord& theirs, int before, const CallRecord& mine, int rank) {
  const std::vector<std::string> there = words_of(theirs);
  const std::vector<std::string> here = words_of(mine);
  const std::size_t shared = std::min(there.size(), here.size());
  std::size_t w = 0;
  while (w + 1 < shared && there[w] == here[w]) ++w;
  fail<InvalidArgument>(
      "attention: rank {} was asked for {}, rank {} for {}; all ranks must be asked for the same",
      before, there[w], rank, here[w]);
}

}  // namespace

/// The record of this rank and those of the ranks before, round after round.
struct Agreement::Exchange {
  comm::Communicator& comm;
  CallRecord mine;
  CallRecord theirs = {};
  int distance = 1;
  comm::Request requests[2] = {};

  Exchange(comm::Communicator& comm, const CallRecord& record) : comm(comm), mine(record) {
    start();
  }

  bool is_over() const { return distance >= comm.world(); }
  int before() const { return (comm.rank() + comm.world() - distance) % comm.world(); }

  void start() {
    if (is_over()) return;
    const comm::Strided out = comm::whole(std::span(&mine, 1));
    const comm::Strided in = comm::whole(std::span(&theirs, 1));
    const comm::Message both[] = {{.direction = comm::Direction::Send,
                                   .peer = (comm.rank() + distance) % comm.world(),
                                   .lane = comm::kCollectiveLane,
                                   .parts = {&out, 1}},
                                  {.direction = comm::Direction::Receive,
                                   .peer = before(),
                                   .lane = comm::kCollectiveLane,
                                   .parts = {&in, 1}}};
    comm.start(both, requests);
  }

  bool is_done() const { return comm.done(requests[0]) && comm.done(requests[1]); }

  /// Ends a round that is done, and starts the next.
  void go_on() {
    compare();
    distance *= 2;
    start();
  }

  void compare() const {
    if (std::memcmp(&mine, &theirs, sizeof(CallRecord)) == 0) return;
    refuse(theirs, before(), mine, comm.rank());
  }
};

Agreement::Agreement(comm::Communicator& comm, const Asked& asked)
    : comm_(comm),
      timeout_s_(asked.options.timeout_s),
      exchange_(std::make_unique<Exchange>(comm, record_of(asked))) {}

Agreement::~Agreement() = default;

bool Agreement::is_open() {
  while (exchange_ && !exchange_->is_over()) {
    if (!exchange_->is_done()) return false;
    exchange_->go_on();
  }
  exchange_.reset();
  return true;
}

void Agreement::wait() {
  while (!is_open()) comm_.wait_all(exchange_->requests, timeout_s_);
}

void Agreement::compare_within(double seconds) {
  if (!exchange_ || exchange_->is_over()) return;
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> most(seconds);
  while (!exchange_->is_done()) {
    if (std::chrono::steady_clock::now() - begin > most) return;
    std::this_thread::yield();
  }
  exchange_->compare();
}

}  // namespace armillary::attention
