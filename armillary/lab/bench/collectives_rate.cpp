// collectives_rate.cpp: each rank has an input and an output of its own; a work of the ranks is one
// call on them. Compute is a chain of multiply-adds, whose length is drawn from the time of the
// call alone, which all ranks are told.
#include "armillary/lab/bench/collectives_rate.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/label.h"
#include "armillary/comm/watched_communicator.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/lab/bench/cores.h"

namespace armillary::bench {
namespace {

constexpr std::array kOperations{"all_gather", "reduce_scatter"};

void count_sent(const comm::Message& message, CollectiveFacts& facts) {
  if (message.direction == comm::Direction::Receive) return;
  ++facts.messages;
  facts.bytes += comm::total_bytes(message.parts);
  if (message.label != nullptr) facts.label_bytes += sizeof(comm::Label);
}

/// Uses the core for so many multiply-adds, one after the other.
void multiply_add(std::int64_t count) {
  volatile double sink = 0;  // So that the compiler cannot know the sum.
  double x = sink;
  for (std::int64_t i = 0; i < count; ++i) x = x * 0.999999 + 1e-6;
  sink = x;
}

/// Seconds of one of them: the least of some.
double seconds_of_one() {
  constexpr std::int64_t kCount = 1 << 20;
  double least = seconds_of([] { multiply_add(kCount); });
  for (int i = 0; i < 4; ++i) least = std::min(least, seconds_of([] { multiply_add(kCount); }));
  return least / static_cast<double>(kCount);
}

/// Element i of the input of a rank. Sums of them depend on their order.
float value_of(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101) *
         (rank % 2 == 0 ? 1e5F : 1e-3F);
}

}  // namespace

/// One operation of one size.
struct CollectivesRate::Collective {
  bool gathers = true;
  std::size_t count = 0;  ///< Elements of a part.
  int world = 0;
  std::int64_t multiply_adds = 0;  ///< Length of the compute.
  Repeats repeats;
  /// By rank; empty for those of other processes.
  std::vector<std::vector<float>> in, out, scratch;

  std::size_t all() const { return count * static_cast<std::size_t>(world); }
  void fill(int rank) {
    in[rank].resize(gathers ? count : all());
    for (std::size_t i = 0; i < in[rank].size(); ++i) in[rank][i] = value_of(rank, i);
    out[rank].assign(gathers ? all() : count, -1);
    if (!gathers) scratch[rank].resize(all());
  }
  comm::Request start(comm::Communicator& comm) {
    const comm::Array from = comm::array(std::span(in[comm.rank()]));
    const comm::Array to = comm::array(std::span(out[comm.rank()]));
    return gathers ? comm::start_all_gather(comm, from, to)
                   : comm::start_reduce_scatter(comm, from, to);
  }
  void run_bare(comm::Communicator& comm);
  void check(int rank) const;
};

// The same batch of messages, without labels and requests of requests.
void CollectivesRate::Collective::run_bare(comm::Communicator& comm) {
  const int self = comm.rank();
  const auto part = [&](std::vector<float>& values, int rank) {
    return std::span(values).subspan(static_cast<std::size_t>(rank) * count, count);
  };
  std::vector<float>& received = gathers ? out[self] : scratch[self];
  if (gathers) std::ranges::copy(in[self], part(received, self).begin());
  std::vector<comm::Strided> parts;
  std::vector<comm::Message> batch;
  parts.reserve(2 * static_cast<std::size_t>(world));
  const auto add = [&](comm::Direction direction, int peer, std::span<float> values) {
    parts.push_back(comm::whole(values));
    batch.push_back({direction, peer, comm::kCollectiveLane, {&parts.back(), 1}});
  };
  for (int step = 1; step < world; ++step) {
    const int next = (self + step) % world;
    const int previous = (self - step + world) % world;
    add(comm::Direction::Receive, previous, part(received, previous));
    add(comm::Direction::Send, next, gathers ? std::span(in[self]) : part(in[self], next));
  }
  comm.wait_all(comm.start(batch));
  if (gathers) return;
  std::vector<comm::Array> addends;
  addends.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    addends.push_back(comm::array(part(rank == self ? in[self] : received, rank)));
  }
  comm::reduce(comm::Reduction::Sum, addends, comm::array(std::span(out[self])));
}

void CollectivesRate::Collective::check(int rank) const {
  for (std::size_t i = 0; i < out[rank].size(); ++i) {
    float required = 0;
    if (gathers) {
      required = value_of(static_cast<int>(i / count), i % count);
    } else {
      const std::size_t at = static_cast<std::size_t>(rank) * count + i;
      required = value_of(0, at);
      for (int other = 1; other < world; ++other) required += value_of(other, at);
    }
    if (out[rank][i] == required) continue;
    fail<Error>("bench: {} of {}: element {} of rank {} is {}; {} is required",
                kOperations[gathers ? 0 : 1], count_of(world, "rank"), i, rank, out[rank][i],
                required);
  }
}

CollectivesRate::CollectivesRate(const CollectivesCase& spec, const MakeRanks& make_ranks) {
  if (spec.world < 2) {
    fail<InvalidArgument>("bench: {}; at least 2 are required", count_of(spec.world, "rank"));
  }
  for (const std::int64_t bytes : spec.bytes) {
    if (bytes > 0 && bytes % 4 == 0) continue;
    fail<InvalidArgument>("bench: {} for fp32; a multiple of 4 from 4 on is required",
                          count_of(bytes, "byte"));
  }
  ranks_ = make_ranks(spec.world, 0);
  const double one_s = seconds_of_one();
  for (const std::int64_t bytes : spec.bytes) {
    for (const bool gathers : {true, false}) {
      Collective& collective = collectives_.emplace_back();
      collective.gathers = gathers;
      collective.count = static_cast<std::size_t>(bytes) / sizeof(float);
      collective.world = spec.world;
      for (auto* memory : {&collective.in, &collective.out, &collective.scratch})
        memory->resize(spec.world);
      facts_.push_back({.operation = kOperations[gathers ? 0 : 1], .part_bytes = bytes});
      // Both ways are checked; the started one is counted.
      int first = 0;
      while (!ranks_->runs(first)) ++first;
      ranks_->run([&](comm::Communicator& comm) {
        const int rank = comm.rank();
        collective.fill(rank);
        collective.run_bare(comm);
        collective.check(rank);
        collective.fill(rank);
        CollectiveFacts others;
        CollectiveFacts& facts = rank == first ? facts_.back() : others;
        comm::WatchedCommunicator watched(
            comm, [&](const comm::Message& message) { count_sent(message, facts); });
        watched.wait(collective.start(watched));
        collective.check(rank);
      });
      const double alone_s =
          ranks_->run([&](comm::Communicator& comm) { comm.wait(collective.start(comm)); },
                      {.untimed = 3, .timed = 5});
      collective.repeats = repeats_for(alone_s);
      collective.multiply_adds = static_cast<std::int64_t>(alone_s / one_s);
    }
  }
}

CollectivesRate::~CollectivesRate() = default;

std::vector<Side> CollectivesRate::sides() {
  std::vector<Side> sides{cores_side()};
  auto facts = facts_.begin();
  for (Collective& one : collectives_) {
    const std::string name = fmt::format("{} {}", facts->operation, facts->part_bytes);
    ++facts;
    const auto add = [&](const char* what, std::function<void(comm::Communicator&)> work) {
      sides.push_back(
          {name + what,
           [this, &one, work = std::move(work)] { return ranks_->run(work, one.repeats); },
           /*on_all_ranks=*/true});
    };
    add("", [&one](comm::Communicator& comm) { comm.wait(one.start(comm)); });
    add(" bare", [&one](comm::Communicator& comm) { one.run_bare(comm); });
    add(" compute", [&one](comm::Communicator&) { multiply_add(one.multiply_adds); });
    add(" beside", [&one](comm::Communicator& comm) {
      const comm::Request request = one.start(comm);
      multiply_add(one.multiply_adds);
      comm.wait(request);
    });
  }
  return sides;
}

}  // namespace armillary::bench
