// rank.cpp: progress, deadlines and failure of one rank, over the lanes of all its groups. NCCL
// calls nothing back, so whoever waits makes progress. A failure is told over the host's group,
// which all ranks listen to, before NCCL's communicators are aborted.
#include "armillary/comm/nccl/rank.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that waits yields its core between looks for so long, then it sleeps.
constexpr std::chrono::microseconds kAwake(200);
constexpr std::chrono::microseconds kSleep(20);
// NCCL notices that a peer is gone; the peer's own reason has so long to arrive.
constexpr std::chrono::milliseconds kReason(500);

}  // namespace

NcclRank::NcclRank(NcclApi& api, Communicator& host, const NcclOptions& options)
    : api_(api), host_(host), options_(options) {
  call([&] { api_.use_device(options_.device); });
}

NcclRank::~NcclRank() {
  abort_lanes();
  if (abort_.joinable()) abort_.join();
  for (const auto& lanes : lanes_) lanes->drop_streams();
}

NcclLanes& NcclRank::make_lanes(Communicator& part) {
  NcclLanes& lanes = *lanes_.emplace_back(std::make_unique<NcclLanes>(*this));
  lanes.make(part);
  return lanes;
}

void NcclRank::end_lanes(NcclLanes& lanes) {
  if (!aborted_) call([&] { lanes.begin_end(); });
}

void NcclRank::progress() {
  throw_if_failed();
  call([&] {
    for (const auto& lanes : lanes_) lanes->progress();
  });
  std::erase_if(lanes_, [](const auto& lanes) { return lanes->ended(); });
}

void NcclRank::throw_if_failed() {
  try {
    host_.throw_if_failed();
  } catch (...) {
    abort_lanes();
    throw;
  }
}

void NcclRank::fail_group(const std::string& reason) {
  host_.abort(reason);
  throw_if_failed();
  throw InternalError("nccl: an aborted group has not failed");
}

void NcclRank::call(const std::function<void()>& functions) {
  if (aborted_) fail_group("nccl: a message that was not done was dropped");
  try {
    functions();
  } catch (const CommError& error) {
    const std::string reason = error.what();
    for (const auto begin = Clock::now(); Clock::now() - begin < kReason;) {
      throw_if_failed();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    fail_group(reason);
  }
}

// The host's group knows who is silent: its ranks answer beside all messages, also while they wait
// here.
void NcclRank::wait_until(const std::function<bool()>& is_over, PeerWaitOptions wait) {
  if (is_over()) return;
  const auto begin = Clock::now();
  const std::unique_ptr<PeerWait> peers = host_.begin_peer_wait(std::move(wait));
  while (!is_over()) {
    progress();
    if (is_over()) return;
    peers->look();
    throw_if_failed();
    if (Clock::now() - begin < kAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

bool NcclRank::needs_progress() const {
  return std::ranges::any_of(lanes_, [](const auto& lanes) { return lanes->needs_progress(); });
}

// NCCL's kernels end at once, but its threads look for an abort only twice a second, and NCCL waits
// for them. So it does on a thread of its own, while this rank leaves with its error.
void NcclRank::abort_lanes() noexcept {
  if (std::exchange(aborted_, true)) return;
  std::vector<NcclComm> comms;
  for (const auto& lanes : lanes_) lanes->add_comms(comms);
  const auto abort = [this, comms] {
    try {
      if (!comms.empty()) api_.abort(comms);
    } catch (const std::exception&) {
      // Nothing more can be done; the group has failed.
    }
  };
  try {
    abort_ = std::thread(abort);
  } catch (const std::system_error&) {
    abort();
  }
  for (const auto& lanes : lanes_) lanes->drain_streams();
}

// Ranks that still work are waited for as long as they need: their own deadlines end them.
void NcclRank::leave() {
  for (const auto& lanes : lanes_) {
    if (!lanes->ending()) end_lanes(*lanes);
  }
  wait_until([&] { return lanes_.empty(); }, {.peers = {}, .timeout_s = 60, .describe = {}});
}

}  // namespace armillary::comm
