// collectives_over_hosts.cpp: the messages of both phases. Parts lie apart in their arrays, so each
// is a message of its own: together as many as with one level.
#include "armillary/comm/collectives_over_hosts.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/exchange.h"

namespace armillary::comm {
namespace {

using Arrays = std::vector<Array>;

/// One phase: sends the arrays `to(peer)` and receives `from(peer)`. The first, on the lane of
/// collectives, has an empty message for a neighbour of the ring that gets none.
template <class To, class From>
std::vector<Request> start_phase(Communicator& comm, int lane, const Label* label, const To& to,
                                 const From& from) {
  const int P = comm.world();
  MessageBatch batch(lane);
  for (int step = 1; step < P; ++step) {
    const bool is_ring = step == 1 && lane == kCollectiveLane;
    const auto add = [&](Direction direction, int peer, Arrays arrays) {
      if (arrays.empty() && is_ring) arrays.emplace_back();
      for (const Array& array : arrays) batch.add(direction, peer, array, label);
    };
    const int next = (comm.rank() + step) % P;
    const int previous = (comm.rank() - step + P) % P;
    add(Direction::Receive, previous, from(previous));
    add(Direction::Send, next, to(next));
  }
  return batch.start(comm);
}

/// A sum under way.
class ScatterOverHosts {
 public:
  ScatterOverHosts(Communicator& comm, const HostGrid& hosts, const ScatterArrays& arrays,
                   StartedCollective& collective)
      : comm_(comm),
        hosts_(hosts),
        arrays_(arrays),
        label_(collective.labels.data()),
        host_(hosts.host[comm.rank()]),
        index_(hosts.index[comm.rank()]) {
    place(collective);
  }

  std::vector<Request> start_on_host() {
    return start_phase(
        comm_, kCollectiveLane, label_,
        [&](int peer) { return is_here(peer) ? column(hosts_.index[peer]) : Arrays(); },
        [&](int peer) { return is_here(peer) ? addends_[hosts_.index[peer]] : Arrays(); });
  }

  /// Sums those of this host for each host, and starts to exchange the sums.
  std::vector<Request> start_between_hosts() {
    const std::size_t to = index_ == 0 ? 1 : 0;  // The first that were received.
    for (std::size_t host = 0; host < hosts_.ranks.size(); ++host) {
      Arrays addends;
      for (const Arrays& of_rank : addends_) addends.push_back(of_rank[host]);
      reduce(arrays_.reduction, addends, addends_[to][host]);
    }
    const Arrays& partials = addends_[to];
    sums_[host_] = partials[host_];
    return start_phase(
        comm_, comm_.lanes(), label_,
        [&](int peer) { return is_like(peer) ? Arrays{partials[hosts_.host[peer]]} : Arrays(); },
        [&](int peer) { return is_like(peer) ? Arrays{sums_[hosts_.host[peer]]} : Arrays(); });
  }

  void finish() const { reduce(arrays_.reduction, sums_, arrays_.mine); }

 private:
  /// The parts of the ranks with this index, by host.
  Arrays column(int index) const {
    Arrays parts;
    for (const std::vector<int>& on_host : hosts_.ranks) {
      parts.push_back(arrays_.parts[on_host[index]]);
    }
    return parts;
  }
  bool is_here(int peer) const { return hosts_.host[peer] == host_; }
  bool is_like(int peer) const { return hosts_.index[peer] == index_ && peer != comm_.rank(); }

  /// Gives all that is received its memory; this rank's parts are read in place.
  void place(StartedCollective& collective) {
    const Arrays own = column(index_);
    addends_.assign(hosts_.ranks.front().size(), own);
    sums_.assign(own.size(), own[host_]);
    std::int64_t bytes = own[host_].bytes() * (std::ssize(own) - 1);
    for (const Array& part : own) bytes += part.bytes() * (std::ssize(addends_) - 1);
    collective.scratch =
        std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    std::byte* next = collective.scratch.get();
    const auto take = [&](Array& array) {
      array.data = next;
      next += array.bytes();
    };
    for (int index = 0; index < std::ssize(addends_); ++index) {
      if (index == index_) continue;
      for (Array& array : addends_[index]) take(array);
    }
    for (int host = 0; host < std::ssize(sums_); ++host) {
      if (host != host_) take(sums_[host]);
    }
  }

  Communicator& comm_;
  const HostGrid hosts_;
  const ScatterArrays arrays_;
  const Label* const label_;
  const int host_;
  const int index_;
  std::vector<Arrays> addends_;  ///< By index of the rank on this host, by host.
  Arrays sums_;                  ///< By host; this one's is there when the first phase is over.
};

}  // namespace

bool HostGrid::has_levels() const {
  const auto as_many = [&](const std::vector<int>& on_host) {
    return on_host.size() == ranks.front().size();
  };
  return ranks.size() > 1 && ranks.front().size() > 1 && std::ranges::all_of(ranks, as_many);
}

HostGrid host_grid(const Communicator& comm) {
  HostGrid grid;
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.world(); ++rank) {
    const int host = comm.host_of(rank);
    const auto place = std::ranges::find(hosts, host) - hosts.begin();
    if (place == std::ssize(hosts)) {
      hosts.push_back(host);
      grid.ranks.emplace_back();
    }
    grid.host.push_back(static_cast<int>(place));
    grid.index.push_back(static_cast<int>(grid.ranks[place].size()));
    grid.ranks[place].push_back(rank);
  }
  return grid;
}

void start_gather_over_hosts(Communicator& comm, const HostGrid& hosts,
                             const std::vector<Array>& parts, StartedCollective& collective) {
  const Label* const label = collective.labels.data();
  const int host = hosts.host[comm.rank()];
  const int index = hosts.index[comm.rank()];
  // Its own part needs no other host, so the ranks of this one get it at once.
  const auto is_near = [&](int peer) {
    return hosts.host[peer] == host || hosts.index[peer] == index;
  };
  collective.messages = start_phase(
      comm, kCollectiveLane, label,
      [&](int peer) { return is_near(peer) ? Arrays{parts[comm.rank()]} : Arrays(); },
      [&](int peer) { return is_near(peer) ? Arrays{parts[peer]} : Arrays(); });
  collective.set_next(comm, [&comm, hosts, parts, label, host, index] {
    // What the ranks of one index have received, for a peer on this host.
    const auto column = [&](int peer, int of_index) {
      Arrays arrays;
      for (int other = 0; other < std::ssize(hosts.ranks) && hosts.host[peer] == host; ++other) {
        if (other != host) arrays.push_back(parts[hosts.ranks[other][of_index]]);
      }
      return arrays;
    };
    return start_phase(
        comm, comm.lanes(), label, [&](int peer) { return column(peer, index); },
        [&](int peer) { return column(peer, hosts.index[peer]); });
  });
}

void start_scatter_over_hosts(Communicator& comm, const HostGrid& hosts,
                              const ScatterArrays& arrays, StartedCollective& collective) {
  const auto scatter = std::make_shared<ScatterOverHosts>(comm, hosts, arrays, collective);
  collective.messages = scatter->start_on_host();
  collective.finish = [scatter] { scatter->finish(); };
  collective.set_next(comm, [scatter] { return scatter->start_between_hosts(); });
}

}  // namespace armillary::comm
