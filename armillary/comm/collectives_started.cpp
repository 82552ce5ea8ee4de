// collectives_started.cpp: collectives as one batch of labelled messages, each rank with each other
// one, and the sum that is left when they have come.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <string>

#include "armillary/comm/call_labels.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/exchange.h"
#include "armillary/comm/started_collective.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// The elements of each rank in an array, one part behind the other.
class Parts {
 public:
  Parts(const Array& all, std::vector<std::int64_t> counts)
      : all_(all), counts_(std::move(counts)), begins_(counts_.size()) {
    std::exclusive_scan(counts_.begin(), counts_.end(), begins_.begin(), std::int64_t{0});
  }
  Array of(int rank) const {
    return {all_.data + begins_[rank] * size_of(all_.dtype), counts_[rank], all_.dtype,
            all_.device};
  }

 private:
  Array all_;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> begins_;
};

/// The counts of all ranks: as given, or the same for each. @throws InvalidArgument unless they are
/// those of the array.
std::vector<std::int64_t> checked_counts(const char* operation, std::span<const std::int64_t> items,
                                         const Array& all, int world) {
  if (items.empty()) {
    if (all.count % world != 0) {
      fail<InvalidArgument>(
          "{}: {} {} for {} ranks and no counts; counts, or a multiple of {}, are required",
          operation, all.count, to_string(all.dtype), world, world);
    }
    return std::vector<std::int64_t>(static_cast<std::size_t>(world), all.count / world);
  }
  std::int64_t sum = 0;
  bool fits = items.size() == static_cast<std::size_t>(world);
  for (const std::int64_t count : items) {
    fits = fits && count >= 0 && !__builtin_add_overflow(sum, count, &sum);
  }
  if (!fits || sum != all.count) {
    fail<InvalidArgument>(
        "{}: counts {} of {} ranks for {} {}; a count from 0 on for each rank, "
        "with that sum, is required",
        operation, fmt::join(items, " + "), world, all.count, to_string(all.dtype));
  }
  return {items.begin(), items.end()};
}

void expect_host(const char* operation, const Array& a, const Array& b) {
  if (a.device == kHost && b.device == kHost) return;
  fail<InvalidArgument>("{}: memory of device {}; started collectives take that of the host",
                        operation, a.device == kHost ? b.device : a.device);
}

void expect_dtype(const char* operation, const Array& a, const Array& b) {
  if (a.dtype == b.dtype) return;
  fail<InvalidArgument>("{}: {} and {}; one dtype is required", operation, to_string(a.dtype),
                        to_string(b.dtype));
}

void expect_count(const char* operation, const Array& mine, std::int64_t required) {
  if (mine.count == required) return;
  fail<InvalidArgument>("{}: {} {} where the counts give this rank {}; as many are required",
                        operation, mine.count, to_string(mine.dtype), required);
}

void copy_into(const Array& from, const Array& to) {
  if (from.count > 0) std::memmove(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

/// The parts in the label of a call, if they were given: " as 3+4+5".
std::string parts_text(std::span<const std::int64_t> items) {
  return items.empty() ? "" : fmt::format(" as {}", fmt::join(items, "+"));
}

}  // namespace

Request start_all_gather(Communicator& comm, const Array& mine, const Array& all,
                         std::span<const std::int64_t> counts) {
  const char* const operation = "all_gather";
  expect_host(operation, mine, all);
  expect_dtype(operation, mine, all);
  const Parts parts(all, checked_counts(operation, counts, all, comm.world()));
  expect_count(operation, mine, parts.of(comm.rank()).count);
  auto collective = std::make_shared<StartedCollective>();
  collective->labels = {call_label(operation, all, parts_text(counts))};
  copy_into(mine, parts.of(comm.rank()));
  collective->messages = start_exchange(
      comm, [&](int) { return mine; }, [&](int rank) { return parts.of(rank); },
      [&](int, int) { return collective->labels.data(); });
  return collective;
}

Request start_reduce_scatter(Communicator& comm, const Array& all, const Array& mine,
                             Reduction reduction, std::span<const std::int64_t> counts) {
  const char* const operation = reduction == Reduction::Sum ? "scatter_sum" : "scatter_max";
  if (all.dtype == ElementType::Byte) {
    fail<InvalidArgument>("{}: bytes have no sum; int64, bf16, fp16, fp32 or fp64 is required",
                          operation);
  }
  expect_host(operation, all, mine);
  if (mine.dtype != ElementType::Fp32 || size_of(all.dtype) != 2)
    expect_dtype(operation, all, mine);
  const Parts parts(all, checked_counts(operation, counts, all, comm.world()));
  const Array own = parts.of(comm.rank());
  expect_count(operation, mine, own.count);
  auto collective = std::make_shared<StartedCollective>();
  collective->labels = {reduce_scatter_label(all, reduction, parts_text(counts))};
  collective->scratch = std::make_unique_for_overwrite<std::byte[]>(
      static_cast<std::size_t>(own.bytes() * (comm.world() - 1)));
  // Addends in rank order: those of others come into the scratch memory, this rank's is read in
  // place.
  std::vector<Array> addends;
  std::byte* next = collective->scratch.get();
  for (int rank = 0; rank < comm.world(); ++rank) {
    const bool is_own = rank == comm.rank();
    addends.push_back(is_own ? own : Array{next, own.count, own.dtype});
    if (!is_own) next += own.bytes();
  }
  collective->messages = start_exchange(
      comm, [&](int rank) { return parts.of(rank); }, [&](int rank) { return addends[rank]; },
      [&](int, int) { return collective->labels.data(); });
  collective->finish = [reduction, addends = std::move(addends), mine] {
    reduce(reduction, addends, mine);
  };
  return collective;
}

Request start_all_to_all(Communicator& comm, const Array& outgoing, const Array& incoming,
                         const AllToAllCounts& counts) {
  const char* const operation = "all_to_all";
  expect_host(operation, outgoing, incoming);
  expect_dtype(operation, outgoing, incoming);
  const int P = comm.world();
  const int self = comm.rank();
  const Parts from(outgoing, checked_counts(operation, counts.outgoing, outgoing, P));
  const Parts to(incoming, checked_counts(operation, counts.incoming, incoming, P));
  expect_count(operation, from.of(self), to.of(self).count);
  auto collective = std::make_shared<StartedCollective>();
  // Each message has a size of its own, so each has a label.
  const auto label = [&](std::int64_t count, int sender, int receiver) {
    return label_of(fmt::format("{} of {} {} from {} to {}", operation, count,
                                to_string(outgoing.dtype), sender, receiver));
  };
  for (int peer = 0; peer < P; ++peer) {
    collective->labels.push_back(label(from.of(peer).count, self, peer));
    collective->labels.push_back(label(to.of(peer).count, peer, self));
  }
  copy_into(from.of(self), to.of(self));
  collective->messages = start_exchange(
      comm, [&](int rank) { return from.of(rank); }, [&](int rank) { return to.of(rank); },
      [&](int sender, int receiver) {
        return collective->labels.data() + (sender == self ? 2 * receiver : 2 * sender + 1);
      });
  return collective;
}

}  // namespace armillary::comm
