// Ranks exchange messages in a ring, as most plans do, so both directions of links are in use. All
// buffers are made before anything is timed.
#include "armillary/lab/calibrate/messages.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include "armillary/comm/collectives.h"
#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/calibrate/timing.h"

namespace armillary::calibrate {
namespace {

constexpr int kLane = 2;  // One of the communication lanes of plans.

constexpr std::int64_t kShortest = 8;  // Bytes of the message of MessageRates::latency_s.

/// The first of two messages in order ends at 0.5 of the time, one of two that share at 1.
constexpr double kInOrder = 0.75;

/// The first message that is tried for a burst, and the least gain that is no noise.
constexpr std::int64_t kShortBurst = 1 << 18;
constexpr double kLeastGain = 0.05;

/// The memory of one rank.
struct Buffers {
  std::vector<std::byte> outgoing;
  std::vector<std::byte> incoming;
};

using Exchange = std::array<comm::Request, 2>;

/// Starts a message in each direction, together: `bytes` of the buffers, from `begin` on.
Exchange start_exchange(comm::Communicator& comm, int distance, Buffers& buffers, std::size_t bytes,
                        std::size_t begin = 0) {
  const int world = comm.world();
  const comm::Strided out = comm::whole(std::span(buffers.outgoing).subspan(begin, bytes));
  const comm::Strided in = comm::whole(std::span(buffers.incoming).subspan(begin, bytes));
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
std::vector<Buffers> make_buffers(const ExchangeCase& spec, const bench::Ranks& ranks) {
  std::vector<Buffers> buffers(spec.world);
  for (int rank = 0; rank < spec.world; ++rank) {
    if (!ranks.runs(rank)) continue;
    const auto most = static_cast<std::size_t>(spec.most_bytes);
    buffers[rank] = {std::vector<std::byte>(most), std::vector<std::byte>(most)};
  }
  return buffers;
}

/// The median of some samples of a value that all ranks measure together, as the mean of theirs.
/// The same on all ranks.
double median_of_means(const ExchangeCase& spec, bench::Ranks& ranks,
                       const std::function<double(comm::Communicator&)>& measure) {
  std::vector<double> sums(spec.world);  // By rank, then over all ranks on each.
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    ranks.run([&](comm::Communicator& comm) {
      double& sum = sums[comm.rank()];
      sum = measure(comm);
      comm::all_reduce_sum(comm, std::span(&sum, 1));
    });
    int here = 0;
    while (!ranks.runs(here)) ++here;
    samples.push_back(sums[here] / spec.world);
  }
  return bench::median(samples);
}

}  // namespace

MessageRates measure_messages(const ExchangeCase& spec, bench::Ranks& ranks) {
  std::vector<Buffers> buffers = make_buffers(spec, ranks);
  std::vector<std::int64_t> sizes{kShortest};
  for (std::int64_t bytes = spec.least_bytes; bytes <= spec.most_bytes; bytes *= 4) {
    sizes.push_back(bytes);
  }
  std::vector<bench::Ranks::Work> exchanges;
  for (const std::int64_t bytes : sizes) {
    exchanges.emplace_back([&, bytes](comm::Communicator& comm) {
      const Exchange requests = start_exchange(comm, spec.distance, buffers[comm.rank()],
                                               static_cast<std::size_t>(bytes));
      comm.wait_all(requests);
    });
  }
  const std::vector<double> seconds = median_seconds(ranks, exchanges);
  // Latency is the least time of any size, as noise may make a longer message faster. Bytes flow
  // for at least a tenth of a message's time, so that the rate stays finite.
  MessageRates rates{.latency_s = *std::ranges::min_element(seconds), .points = {}};
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    const double flowing = std::max(seconds[i] - rates.latency_s, 0.1 * seconds[i]);
    const auto bytes = static_cast<double>(sizes[i]);
    rates.points.push_back({.size = bytes, .rate = bytes / flowing});
  }
  return rates;
}

double measure_burst(const ExchangeCase& spec, const MessageRates& rates, bench::Ranks& ranks) {
  std::vector<Buffers> buffers = make_buffers(spec, ranks);
  // Short messages show a small burst, but they may be shorter than a large one.
  for (std::int64_t bytes = kShortBurst;; bytes *= 4) {
    const auto size = static_cast<double>(bytes);
    const double steady = rates.latency_s + size / interpolate(rates.points, size);
    const double after = median_of_means(spec, ranks, [&](comm::Communicator& comm) {
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * steady));
      comm::barrier(comm);
      return bench::seconds_of([&] {
        comm.wait_all(start_exchange(comm, spec.distance, buffers[comm.rank()],
                                     static_cast<std::size_t>(bytes)));
      });
    });
    const double burst = (steady - after) * rates.points.back().rate;
    if (burst < 0.5 * size || 4 * bytes > spec.most_bytes) {
      return burst < kLeastGain * size ? 0 : burst;
    }
  }
}

bool measure_in_order(const ExchangeCase& spec, bench::Ranks& ranks) {
  std::vector<Buffers> buffers = make_buffers(spec, ranks);
  const auto half = static_cast<std::size_t>(spec.most_bytes / 2);
  const double share = median_of_means(spec, ranks, [&](comm::Communicator& comm) {
    std::array<Exchange, 2> exchanges;
    double first = 0;
    const double both = bench::seconds_of([&] {
      first = bench::seconds_of([&] {
        for (int i = 0; i < 2; ++i) {
          exchanges[i] = start_exchange(comm, spec.distance, buffers[comm.rank()], half, i * half);
        }
        comm.wait_all(exchanges[0]);
      });
      comm.wait_all(exchanges[1]);
    });
    return first / both;
  });
  return share < kInOrder;
}

double measure_slowdown(const ExchangeCase& spec, const BlockShape& shape, bench::Ranks& ranks) {
  std::vector<Buffers> buffers = make_buffers(spec, ranks);
  std::vector<std::unique_ptr<BlockCall>> calls(spec.world);
  for (int rank = 0; rank < spec.world; ++rank) {
    if (ranks.runs(rank)) calls[rank] = std::make_unique<BlockCall>(shape);
  }
  const auto start = [&](comm::Communicator& comm) {
    return start_exchange(comm, spec.distance, buffers[comm.rank()],
                          static_cast<std::size_t>(spec.most_bytes));
  };
  const bench::Ranks::Work call = [&](comm::Communicator& comm) {
    calls[comm.rank()]->run(plan::Pass::Forward, true);
  };
  // So many calls on every rank that the last ends before the messages, also if it is slowed down.
  const double messages_s =
      median_seconds(ranks, [&](comm::Communicator& comm) { comm.wait_all(start(comm)); });
  const int count = std::max(1, static_cast<int>(0.7 * messages_s / median_seconds(ranks, call)));
  // The same calls alone follow at once: so both have the same of what else the machine does.
  const double factor = median_of_means(spec, ranks, [&](comm::Communicator& comm) {
    const auto run_calls = [&] {
      for (int i = 0; i < count; ++i) call(comm);
    };
    const Exchange requests = start(comm);
    const double beside = bench::seconds_of(run_calls);
    comm.wait_all(requests);
    comm::barrier(comm);
    return beside / bench::seconds_of(run_calls);
  });
  return std::max(1.0, factor);
}

}  // namespace armillary::calibrate
