#include "armillary/plan/strategies/axis.h"

#include <algorithm>
#include <map>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

void merge_sorted(std::vector<int>& into, const std::vector<int>& more) {
  std::vector<int> both;
  std::set_union(into.begin(), into.end(), more.begin(), more.end(), std::back_inserter(both));
  into = std::move(both);
}

}  // namespace

Axis::Axis(ProgramBuilder& builder, Options options)
    : builder_(builder), options_(std::move(options)) {}

template <class Keep>
std::vector<int> Axis::blocks_where(int origin, const Keep& keep) const {
  std::vector<int> blocks = options_.blocks(origin);
  std::erase_if(blocks, [&](int block) { return !keep(block); });
  return blocks;
}

/// Blocks that travel on a hop of spread, or of collect; those that this member needs itself.
std::vector<int> Axis::spread_on(const Hop& hop) const {
  return blocks_where(hop.origin,
                      [&](int block) { return options_.live->spread(block, hop.distance); });
}

std::vector<int> Axis::collected_on(const Hop& hop) const {
  return blocks_where(hop.origin,
                      [&](int block) { return options_.live->collect(block, hop.distance); });
}

std::vector<int> Axis::needed_of(int origin) const {
  return blocks_where(origin, [&](int block) { return options_.needs(block); });
}

const Held& Axis::holder(const std::vector<Held>& held, int origin) const {
  for (const Held& candidate : held) {
    if (std::count(candidate.origins.begin(), candidate.origins.end(), origin) > 0) {
      return candidate;
    }
  }
  fail<InternalError>("axis: member {} holds nothing of member {}", options_.me, origin);
}

std::vector<Held> Axis::spread(const std::vector<Tensor>& tensors,
                               const std::vector<int>& own_tiles, int own_usable, int departure) {
  const Hops hops = options_.route->spread(options_.me);
  const std::vector<int>& own = options_.blocks(options_.me);
  std::vector<Held> held{{.heads = options_.heads,
                          .origins = {options_.me},
                          .blocks = own,
                          .needed = own,
                          .tiles = own_tiles,
                          .usable = own_usable}};
  std::map<int, Held> arrivals;  // by step: what becomes usable together is one tile
  for (const Hop& hop : hops.in) {
    const int usable = departure + options_.route->usable(options_.me, hop.origin);
    Held& arrival = arrivals[usable];
    arrival.heads = options_.heads;
    arrival.usable = usable;
    arrival.origins.push_back(hop.origin);
    merge_sorted(arrival.blocks, spread_on(hop));
    merge_sorted(arrival.needed, needed_of(hop.origin));
  }
  const bool one_call = options_.one_call && arrivals.size() == 1;
  if (one_call) join_own(arrivals.begin()->second, held[0]);
  for (auto& [step, arrival] : arrivals) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      arrival.tiles.push_back(builder_.tile(tensors[t], false, options_.heads, arrival.blocks));
      if (!one_call) continue;
      const std::vector<int> mine = needed_of(options_.me);
      builder_.compute(departure, OpKind::Copy,
                       {builder_.part(arrival.tiles[t], mine),
                        builder_.part(own_tiles[t], options_.heads, mine)});
    }
    held.push_back(arrival);
  }
  if (one_call) held.erase(held.begin());
  const Collective collective =
      options_.route->movement() == Movement::Gather ? Collective::AllGather : Collective::None;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (const Hop& hop : hops.out) {
      const int tile = hop.origin == options_.me ? own_tiles[t] : holder(held, hop.origin).tiles[t];
      const View view = builder_.part(tile, options_.heads, spread_on(hop));
      builder_.send(departure + hop.step, options_.lane, options_.rank(hop.peer), view, collective);
    }
    for (const Hop& hop : hops.in) {
      const View view = builder_.part(holder(held, hop.origin).tiles[t], spread_on(hop));
      builder_.recv(departure + hop.step, options_.lane, options_.rank(hop.peer), view, collective);
    }
  }
  return held;
}

/// Own blocks into the tile of those that arrive. Sums are of all own blocks, also of those that
/// see nothing: they are results.
void Axis::join_own(Held& arrival, const Held& own) const {
  arrival.origins.push_back(options_.me);
  merge_sorted(arrival.blocks, needed_of(options_.me));
  merge_sorted(arrival.needed, own.needed);
}

void Axis::open_sums(std::vector<Held>& held, const std::vector<Tensor>& tensors,
                     const Ready& ready) {
  const Hops hops = options_.home->collect(options_.me, ready);
  for (Held& entry : held) {
    std::vector<int> blocks = entry.needed;
    for (const Hop& hop : hops.in) {  // sums of others that only pass through
      if (std::count(entry.origins.begin(), entry.origins.end(), hop.origin) > 0) {
        merge_sorted(blocks, collected_on(hop));
      }
    }
    for (const Tensor tensor : tensors) {
      entry.sums.push_back(builder_.tile(tensor, true, options_.heads, blocks));
      builder_.compute(entry.usable, OpKind::Clear, {builder_.whole(entry.sums.back())});
    }
  }
}

void Axis::combine(int step, const Held& into, const std::vector<int>& scratch) {
  const std::vector<int>& blocks = builder_[scratch[0]].blocks;
  if (builder_[scratch[0]].tensor == Tensor::Out) {
    builder_.compute(step, OpKind::Merge,
                     {builder_.part(into.sums[0], blocks), builder_.part(into.sums[1], blocks),
                      builder_.whole(scratch[0]), builder_.whole(scratch[1])});
    return;
  }
  for (std::size_t t = 0; t < scratch.size(); ++t) {
    builder_.compute(step, OpKind::Add,
                     {builder_.part(into.sums[t], blocks), builder_.whole(scratch[t])});
  }
}

View Axis::own_sum(const std::vector<Held>& held, int tensor) const {
  return builder_.part(holder(held, options_.me).sums[tensor], options_.blocks(options_.me));
}

int Axis::collect(const std::vector<Held>& held, const Ready& ready) {
  const Hops hops = options_.home->collect(options_.me, ready);
  const Collective collective =
      options_.home->movement() == Movement::Gather ? Collective::ReduceScatter : Collective::None;
  int complete = ready(options_.me, options_.me);
  for (const Hop& hop : hops.out) {
    for (const int sum : holder(held, hop.origin).sums) {
      builder_.send_sum(hop.step, options_.back_lane, options_.rank(hop.peer),
                        builder_.part(sum, collected_on(hop)), collective);
    }
  }
  for (const Hop& hop : hops.in) {
    const Held& into = holder(held, hop.origin);
    const std::vector<int> blocks = collected_on(hop);
    std::vector<int> scratch;
    for (const int sum : into.sums) {
      scratch.push_back(builder_.arriving_sum(builder_[sum].tensor, options_.heads, blocks));
      builder_.recv(hop.step, options_.back_lane, options_.rank(hop.peer),
                    builder_.whole(scratch.back()), collective);
    }
    const int step = std::max(hop.step, ready(options_.me, hop.origin));
    combine(step, into, scratch);
    if (hop.origin == options_.me) complete = std::max(complete, step);
  }
  return complete;
}

}  // namespace armillary::plan
