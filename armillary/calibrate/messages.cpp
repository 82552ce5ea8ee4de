// Ranks exchange messages in a ring, as most plans do, so both directions of links are in use. All
// buffers are made before anything is timed.
#include "armillary/calibrate/messages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

#include "armillary/bench/interleaved_timing.h"
#include "armillary/calibrate/timing.h"
#include "armillary/comm/collectives.h"

namespace armillary::calibrate {
namespace {

constexpr int kLane = 2;  // One of the communication lanes of plans.

/// The memory of one rank.
struct Buffers {
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
};

using Exchange = std::array<comm::Request, 2>;

/// Starts a message in each direction, together.
Exchange start_exchange(comm::Communicator& comm, int distance, Buffers& buffers,
                        std::size_t bytes) {
  const int world = comm.world();
  const comm::Strided out = comm::whole(std::span(buffers.sent).first(bytes));
  const comm::Strided in = comm::whole(std::span(buffers.received).first(bytes));
  const std::array<comm::Message, 2> batch{
      comm::Message{.direction = comm::Direction::Receive,
                    .peer = (comm.rank() + world - distance) % world,
                    .lane = kLane,
                    .parts = {&in, 1}},
      comm::Message{.direction = comm::Direction::Send,
                    .peer = (comm.rank() + distance) % world,
                    .lane = kLane,
                    .parts = {&out, 1}}};
  Exchange requests;
  comm.start(batch, requests);
  return requests;
}

/// Buffers of the ranks of this process.
std::vector<Buffers> make_buffers(const ExchangeCase& given, const bench::Ranks& ranks) {
  std::vector<Buffers> buffers(given.world);
  for (int rank = 0; rank < given.world; ++rank) {
    if (!ranks.runs(rank)) continue;
    const auto most = static_cast<std::size_t>(given.most_bytes);
    buffers[rank] = {std::vector<std::byte>(most), std::vector<std::byte>(most)};
  }
  return buffers;
}

}  // namespace

MessageRates measure_messages(const ExchangeCase& given, bench::Ranks& ranks) {
  std::vector<Buffers> buffers = make_buffers(given, ranks);
  const auto seconds_of = [&](std::int64_t bytes) {
    return median_seconds(ranks, [&, bytes](comm::Communicator& comm) {
      const Exchange requests = start_exchange(comm, given.distance, buffers[comm.rank()],
                                               static_cast<std::size_t>(bytes));
      comm.wait_all(requests);
    });
  };
  // Latency is the least time of any size, as noise may make a longer message faster. Bytes flow
  // for at least a tenth of a message's time, so that the rate stays finite.
  MessageRates rates{.latency_s = seconds_of(8), .points = {}};
  std::vector<double> seconds;
  for (std::int64_t bytes = given.least_bytes; bytes <= given.most_bytes; bytes *= 4) {
    seconds.push_back(seconds_of(bytes));
    rates.latency_s = std::min(rates.latency_s, seconds.back());
    rates.points.push_back({.size = static_cast<double>(bytes), .rate = 0});
  }
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double flowing = std::max(seconds[i] - rates.latency_s, 0.1 * seconds[i]);
    rates.points[i].rate = rates.points[i].size / flowing;
  }
  return rates;
}

double measure_slowdown(const ExchangeCase& given, const BlockShape& shape, bench::Ranks& ranks) {
  std::vector<Buffers> buffers = make_buffers(given, ranks);
  std::vector<std::unique_ptr<BlockCall>> calls(given.world);
  for (int rank = 0; rank < given.world; ++rank) {
    if (ranks.runs(rank)) calls[rank] = std::make_unique<BlockCall>(shape);
  }
  const double alone = median_seconds(
      ranks, [&](comm::Communicator& comm) { calls[comm.rank()]->run(plan::Pass::Forward, true); });
  // Seconds of a call beside messages: by rank, then summed over all ranks on each.
  std::vector<double> beside(given.world);
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    ranks.run([&](comm::Communicator& comm) {
      const Exchange requests = start_exchange(comm, given.distance, buffers[comm.rank()],
                                               static_cast<std::size_t>(given.most_bytes));
      int count = 0;
      const double seconds = bench::seconds_of([&] {
        for (; !comm.done(requests[0]) || !comm.done(requests[1]); ++count) {
          calls[comm.rank()]->run(plan::Pass::Forward, true);
        }
      });
      beside[comm.rank()] = count == 0 ? alone : seconds / count;
      comm::all_reduce_sum(comm, std::span(&beside[comm.rank()], 1));
    });
    for (int rank = 0; rank < given.world; ++rank) {
      if (!ranks.runs(rank)) continue;
      samples.push_back(beside[rank] / given.world);
      break;
    }
  }
  return std::max(1.0, bench::median(samples) / alone);
}

}  // namespace armillary::calibrate
