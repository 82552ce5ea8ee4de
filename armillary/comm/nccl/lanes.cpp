// Batches as NCCL groups. NCCL's communicators are nonblocking: a group that was ended may still
// connect to its peers, and until it has, its kernel is not in the stream. So each lane has a
// queue, and progress() moves works from one state to the next.
#include "armillary/comm/nccl/lanes.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/nccl/pending.h"
#include "armillary/comm/nccl/rank.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

// Streams are empty soon after an abort; a device that hangs is not waited for any longer.
constexpr std::chrono::seconds kDrain(2);

/// Copies rows between memory in one row and the parts of a message, in their order.
void copy_parts(NcclApi& api, const NcclMove& move, GpuStream stream) {
  std::byte* packed = move.bytes.data();
  for (const Strided& part : move.parts) {
    if (part.rows == 0 || part.row_bytes == 0) continue;
    const std::int64_t stride = part.rows == 1 ? part.row_bytes : part.stride_bytes;
    const bool packs = move.direction == Direction::Send;
    api.copy({.to = packs ? packed : part.data,
              .to_stride = packs ? part.row_bytes : stride,
              .from = packs ? part.data : packed,
              .from_stride = packs ? stride : part.row_bytes,
              .row_bytes = part.row_bytes,
              .rows = part.rows},
             stream);
    packed += part.rows * part.row_bytes;
  }
}

}  // namespace

void NcclLanes::make(Communicator& part) {
  const int count = rank_.options().lanes;
  own_ = part.rank();
  const int on_host = rank_.host().rank();
  ranks_.resize(part.world());
  all_gather(part, std::as_bytes(std::span(&on_host, 1)),
             std::as_writable_bytes(std::span(ranks_)));
  // Rank 0 makes the ids of all communicators, of which one is ready before the next begins.
  std::vector<NcclId> ids(count);
  if (part.rank() == 0) {
    rank_.call([&] { std::ranges::generate(ids, [&] { return rank_.api().make_id(); }); });
  }
  broadcast(part, std::as_writable_bytes(std::span(ids)), 0);
  for (int i = 0; i < count; ++i) {
    Lane& lane = lanes_.emplace_back();
    rank_.call([&] {
      lane.stream = rank_.api().make_stream();
      lane.nothing = rank_.api().allocate(2, lane.stream);
      lane.comm = rank_.api().begin_init({.id = ids[i],
                                          .rank = part.rank(),
                                          .world = part.world(),
                                          .most_blocks = rank_.options().blocks_per_lane});
    });
    const auto is_over = [&] {
      bool over = false;
      rank_.call([&] { over = rank_.api().ready(lane.comm); });
      return over;
    };
    rank_.wait_until(is_over,
                     {.peers = others_on_host(), .timeout_s = part.timeout_s(), .describe = [&] {
                        return fmt::format(
                            "run_on_nccl: the communicator of lane {} of {} was "
                            "not ready",
                            i, count_of(part.world(), "rank"));
                      }});
  }
}

std::vector<int> NcclLanes::on_host(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = ranks_[rank];
  return ranks;
}

std::vector<int> NcclLanes::others_on_host() const {
  std::vector<int> others = ranks_;
  std::erase(others, rank_.host().rank());
  return others;
}

NcclMove NcclLanes::move_of(Lane& lane, const Message& message, std::int64_t bytes) {
  NcclMove move{.direction = message.direction, .peer = message.peer};
  std::byte* row = one_row(message.parts);
  if (bytes == 0) {  // One byte: NCCL skips 0, but a receive waits for its send.
    row = lane.nothing + (message.direction == Direction::Send ? 0 : 1);
    bytes = 1;
  } else if (!row) {
    row = rank_.api().allocate(bytes, lane.stream);
    move.packed = true;
    move.parts.assign(message.parts.begin(), message.parts.end());
  }
  move.bytes = {row, static_cast<std::size_t>(bytes)};
  return move;
}

void NcclLanes::start(std::span<const Message> batch, std::span<Request> requests) {
  std::map<int, NcclWork> works;  // By lane.
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Lane& lane = lanes_[batch[i].lane];
    const std::int64_t bytes = total_bytes(batch[i].parts);
    rank_.call([&] { works[batch[i].lane].moves.push_back(move_of(lane, batch[i], bytes)); });
    requests[i] = std::make_shared<NcclPending>(*this, batch[i], bytes, lane.works_begun + 1);
  }
  for (auto& [number, work] : works) {
    lanes_[number].works.push_back(std::move(work));
    ++lanes_[number].works_begun;
  }
  rank_.call([&] {
    for (auto& [number, work] : works) progress(lanes_[number]);
  });
}

std::uint64_t NcclLanes::start_collective(int lane,
                                          std::function<void(NcclComm, GpuStream)> collective) {
  lanes_[lane].works.push_back({.collective = std::move(collective)});
  rank_.call([&] { progress(lanes_[lane]); });
  return ++lanes_[lane].works_begun;
}

void NcclLanes::begin(Lane& lane, NcclWork& work) {
  NcclApi& api = rank_.api();
  for (const NcclMove& move : work.moves) {
    if (move.direction == Direction::Send) copy_parts(api, move, lane.stream);
  }
  const auto add = [&] {
    if (work.collective) work.collective(lane.comm, lane.stream);
    for (const NcclMove& move : work.moves) {
      if (move.direction == Direction::Send) {
        api.send(lane.comm, lane.stream, move.bytes, move.peer);
      } else {
        api.receive(lane.comm, lane.stream, move.bytes, move.peer);
      }
    }
  };
  api.begin_group();
  try {
    add();
  } catch (...) {
    api.drop_group();
    throw;
  }
  api.end_group();
  work.state = NcclWork::State::Starting;
}

void NcclLanes::follow(Lane& lane, NcclWork& work) {
  NcclApi& api = rank_.api();
  for (const NcclMove& move : work.moves) {
    if (move.direction == Direction::Receive) copy_parts(api, move, lane.stream);
    if (move.packed) api.release(move.bytes.data(), lane.stream);
  }
  work.event = api.record(lane.stream);
  work.state = NcclWork::State::Running;
}

void NcclLanes::progress(Lane& lane) {
  NcclApi& api = rank_.api();
  for (NcclWork& work : lane.works) {
    if (work.state == NcclWork::State::Running) continue;
    // The next group may begin only when the one before is in the stream.
    if (!api.ready(lane.comm)) break;
    if (work.state == NcclWork::State::Queued) {
      begin(lane, work);
      if (!api.ready(lane.comm)) break;
    }
    follow(lane, work);
  }
  if (!lane.works.empty()) api.ready(lane.comm);  // Throws if NCCL has failed by itself.
  while (!lane.works.empty() && lane.works.front().event && api.is_done(lane.works.front().event)) {
    api.drop_event(lane.works.front().event);
    lane.works.pop_front();
    ++lane.works_done;
  }
}

bool NcclLanes::needs_progress() const {
  return std::ranges::any_of(lanes_, [](const Lane& lane) {
    return !lane.works.empty() && lane.works.back().state != NcclWork::State::Running;
  });
}

void NcclLanes::progress() {
  if (ending_) {
    std::erase_if(lanes_, [&](Lane& lane) { return progress_to_end(lane); });
  } else {
    for (Lane& lane : lanes_) progress(lane);
  }
}

// The caller may free the memory of the message when this returns.
void NcclLanes::withdraw(const Pending& message) noexcept {
  // A rank that unwinds has an error that says more: the group fails with it.
  if (std::uncaught_exceptions() == 0) {
    rank_.host().abort(
        fmt::format("rank {} dropped a request of {} with rank {} on lane {} before it was "
                    "done",
                    own_, count_of(message.bytes(), "byte"), message.peer(), message.lane()));
  }
  rank_.abort_lanes();
}

void NcclLanes::begin_end() {
  ending_ = true;
  for (Lane& lane : lanes_) rank_.api().begin_end(lane.comm);
}

bool NcclLanes::progress_to_end(Lane& lane) {
  NcclApi& api = rank_.api();
  if (!api.ready(lane.comm)) return false;
  api.drop(lane.comm);
  api.release(lane.nothing, lane.stream);
  api.drop_stream(lane.stream);
  return true;
}

void NcclLanes::add_comms(std::vector<NcclComm>& comms) const {
  for (const Lane& lane : lanes_) {
    if (lane.comm) comms.push_back(lane.comm);
  }
}

// Copies behind NCCL's kernel still run after it has ended, into memory of receives.
void NcclLanes::drain_streams() const noexcept {
  NcclApi& api = rank_.api();
  try {
    const auto end = std::chrono::steady_clock::now() + kDrain;
    for (const Lane& lane : lanes_) {
      if (!lane.stream) continue;
      const GpuEvent event = api.record(lane.stream);
      while (!api.is_done(event) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      api.drop_event(event);
    }
  } catch (const std::exception&) {
    // The device itself has failed: it runs nothing any more.
  }
}

void NcclLanes::drop_streams() noexcept {
  NcclApi& api = rank_.api();
  try {
    for (Lane& lane : lanes_) {
      if (!lane.stream) continue;
      for (const NcclWork& work : lane.works) {
        const bool has_ended = work.state != NcclWork::State::Running;
        for (const NcclMove& move : work.moves) {
          if (has_ended && move.packed) api.release(move.bytes.data(), lane.stream);
        }
        if (work.event) api.drop_event(work.event);
      }
      if (lane.nothing) api.release(lane.nothing, lane.stream);
      api.drop_stream(lane.stream);
    }
  } catch (const std::exception&) {
    // Nothing is left to be freed on a device that has failed.
  }
  for (Lane& lane : lanes_) lane.comm = nullptr, lane.stream = nullptr;
}

}  // namespace armillary::comm
