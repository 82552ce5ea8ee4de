// agreement.cpp: the comparison as exchanges of one send and one receive each.
//
// In the exchange of distance d, rank r sends to rank r + d and receives from rank r - d. After it,
// rank r has the gravest verdict of the 2 d ranks that end with r, so distances 1, 2, 4, .. reach
// all ranks. Nothing runs in the background: an exchange ends, and the next one starts, when the
// rank calls is_open() or wait().
#include "armillary/attention/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace armillary::attention {

/// One message. It is sent as bytes, and its record is compared as bytes.
struct AgreementMessage {
  CallRecord record;
  proof::Verdict verdict;
};
static_assert(sizeof(AgreementMessage) == 1536 && std::is_trivially_copyable_v<AgreementMessage>);

namespace {

/// The error for two records that are not equal: the first word in which they differ, on each side.
std::string difference(const CallRecord& theirs, int before, const CallRecord& mine, int rank) {
  const std::vector<std::string> there = words_of(theirs);
  const std::vector<std::string> here = words_of(mine);
  const std::size_t shared = std::min(there.size(), here.size());
  std::size_t w = 0;
  while (w + 1 < shared && there[w] == here[w]) ++w;
  const bool is_sequence = there[w].starts_with("sequence=");
  return fmt::format("attention: rank {} was asked for {}, rank {} for {}; {}", before, there[w],
                     rank, here[w],
                     is_sequence ? "ranks hold different sequences: the same whole sequence on all "
                                   "ranks, sharded once, is required"
                                 : "all ranks must be asked for the same");
}

}  // namespace

/// State of the exchanges: the message of this rank, which gathers the gravest verdict, and the one
/// that it hears.
struct Agreement::Exchange {
  comm::Communicator& comm;
  AgreementMessage mine;
  AgreementMessage theirs = {};
  int distance = 1;  ///< From this rank to the one that it tells: 1, 2, 4, ..
  comm::Request requests[2] = {};

  Exchange(comm::Communicator& comm, const CallRecord& record, const proof::Verdict& own)
      : comm(comm), mine{.record = record, .verdict = own} {
    start();
  }

  bool is_over() const { return distance >= comm.world(); }
  int before() const { return (comm.rank() + comm.world() - distance) % comm.world(); }

  /// Starts the messages of an exchange. Requests and buffers live until they are done.
  void start() {
    if (is_over()) return;
    const comm::Strided out = comm::whole(std::span(&mine, 1));
    const comm::Strided in = comm::whole(std::span(&theirs, 1));
    const comm::Message both[] = {{.direction = comm::Direction::Send,
                                   .peer = (comm.rank() + distance) % comm.world(),
                                   .lane = agreement_lane(comm),
                                   .parts = {&out, 1}},
                                  {.direction = comm::Direction::Receive,
                                   .peer = before(),
                                   .lane = agreement_lane(comm),
                                   .parts = {&in, 1}}};
    comm.start(both, requests);
  }

  bool is_done() const { return comm.is_complete(requests[0]) && comm.is_complete(requests[1]); }

  /// Ends an exchange whose messages are done, and starts the next.
  void go_on() {
    if (std::memcmp(&mine.record, &theirs.record, sizeof(CallRecord)) != 0) {
      mine.verdict.raise(proof::Finding::Different,
                         difference(theirs.record, before(), mine.record, comm.rank()));
    }
    mine.verdict.raise(theirs.verdict.finding, theirs.verdict.text);
    distance *= 2;
    start();
  }
};

Agreement::Agreement(comm::Communicator& comm, const CallRequest& request,
                     const proof::Verdict& own)
    : comm_(comm), timeout_s_(request.options.timeout_s) {
  if (comm.world() == 1) return;  // Open from the start.
  exchange_ = std::make_unique<Exchange>(comm, record_of(request), own);
}

Agreement::~Agreement() = default;

bool Agreement::is_open() {
  if (!exchange_) return true;
  while (!exchange_->is_over()) {
    if (!exchange_->is_done()) return false;
    exchange_->go_on();
  }
  // Returns if the verdict is Fine. Else all ranks throw, none before all have the verdict.
  proof::throw_together(comm_, exchange_->mine.verdict);
  exchange_.reset();
  return true;
}

void Agreement::wait() {
  while (!is_open()) comm_.wait_all(exchange_->requests, timeout_s_);
}

bool Agreement::opens_within(double seconds) {
  if (is_open()) return true;  // without a look at the clock
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> most(seconds);
  do {
    std::this_thread::yield();
    if (is_open()) return true;
  } while (std::chrono::steady_clock::now() - begin <= most);
  return false;
}

}  // namespace armillary::attention
