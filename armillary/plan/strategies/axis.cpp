// axis.cpp: hops of a route as messages of one rank.
//
// Order of work: the constructor asks the route for the hops of this member and keeps those that
// some block needs; `find_arrivals` groups the origins by the step in which their tiles are usable;
// `spread` and `collect` then emit one message per hop and tensor, in the order of the route, so
// that the messages of two ranks match.
#include "armillary/plan/strategies/axis.h"

#include <algorithm>
#include <utility>

namespace armillary::plan {
namespace {

template <class Ids>
void append(std::vector<int>& into, const Ids& more) {
  into.insert(into.end(), more.begin(), more.end());
}

void sort_unique(std::vector<int>& blocks) {
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

}  // namespace

Axis::Axis(ProgramBuilder& builder, AxisOptions options)
    : builder_(builder), options_(std::move(options)) {
  blocks_.reserve(options_.route->size());
  for (int origin = 0; origin < options_.route->size(); ++origin) {
    blocks_.push_back(options_.blocks(origin));
  }
  const Hops hops = options_.route->spread(options_.me);
  out_ = moves(hops.out);
  in_ = moves(hops.in);
  for (std::vector<Move>* moves : {&out_, &in_}) {
    std::erase_if(*moves, [](const Move& move) { return move.blocks.empty(); });
  }
  find_arrivals();
}

/// Blocks of the origin's tile for which `keep(block)` is true.
template <class Keep>
BlockIds Axis::blocks_where(int origin, const Keep& keep) const {
  BlockIds blocks;
  for (const int block : blocks_[origin]) {
    if (keep(block)) blocks.push_back(block);
  }
  return blocks;
}

/// Each hop with the blocks that need it; the list may be empty.
std::vector<Axis::Move> Axis::moves(const std::vector<Hop>& hops) const {
  std::vector<Move> moves;
  moves.reserve(hops.size());
  for (const Hop& hop : hops) {
    moves.push_back({hop, blocks_where(hop.origin, [&](int block) {
                       return is_hop_needed(
                           hop, [&](int member) { return options_.needs(member, block); });
                     })});
  }
  return moves;
}

/// Blocks of the origin's tile that this rank needs.
BlockIds Axis::needed_of(int origin) const {
  return blocks_where(origin, [&](int block) { return options_.needs(options_.me, block); });
}

/// Groups the origins by the step in which their tiles are usable; a whole gather is one group.
void Axis::find_arrivals() {
  const Route& route = *options_.route;
  const bool waits = gathers() && options_.gathered == Gathered::Whole;
  std::vector<std::pair<int, int>> usable;  // The step of each origin, and the origin.
  usable.reserve(route.size());
  for (int origin = 0; origin < route.size(); ++origin) {
    usable.emplace_back(waits ? route.last_usable() : route.usable(options_.me, origin), origin);
  }
  std::sort(usable.begin(), usable.end());
  std::vector<int> blocks;
  for (auto next = usable.begin(); next != usable.end();) {
    UsableTiles& arrival = arrivals_.emplace_back();
    arrival.usable = next->first;
    blocks.clear();
    for (; next != usable.end() && next->first == arrival.usable; ++next) {
      const int origin = next->second;
      arrival.origins.push_back(origin);
      // All own blocks, also those that see nothing: their results must exist too.
      append(blocks, origin == options_.me ? blocks_[origin] : needed_of(origin));
    }
    sort_unique(blocks);
    arrival.blocks = blocks;
  }
}

/// Indexed by origin: the element of `arrived` that has its tiles.
std::vector<int> Axis::index_by_origin(const std::vector<Arrived>& arrived) const {
  std::vector<int> index(options_.route->size(), -1);
  for (std::size_t a = 0; a < arrived.size(); ++a) {
    for (const int origin : arrived[a].origins) index[origin] = static_cast<int>(a);
  }
  return index;
}

/// One tile per tensor for all blocks that this rank needs, with a copy of its own part in it.
SmallVector<int, 4> Axis::gather(const std::vector<Tensor>& tensors,
                                 const std::vector<int>& own_tiles, Heads heads, int step) {
  std::vector<int> all;
  for (int origin = 0; origin < options_.route->size(); ++origin) append(all, needed_of(origin));
  sort_unique(all);
  const BlockIds own = needed_of(options_.me);
  SmallVector<int, 4> tiles;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tiles.push_back(builder_.tile(tensors[t], false, heads, all));
    builder_.compute(step, OpKind::Copy,
                     {builder_.part(tiles[t], own), builder_.part(own_tiles[t], heads, own)});
  }
  return tiles;
}

std::vector<Arrived> Axis::spread(const std::vector<Tensor>& tensors,
                                  const std::vector<int>& own_tiles, Heads heads,
                                  const Departure& departure) {
  // Tiles: the shared one of a gather, the rank's own, or a new one for each arrival.
  SmallVector<int, 4> all;
  if (gathers()) all = gather(tensors, own_tiles, heads, departure.begin);
  std::vector<Arrived> arrived;
  for (const UsableTiles& arrival : arrivals_) {
    const bool own = arrival.usable == 0;
    arrived.push_back(
        {.heads = heads,
         .origins = arrival.origins,
         .blocks = arrival.blocks,
         .tiles = gathers() ? all
                  : own     ? SmallVector<int, 4>(own_tiles)
                            : SmallVector<int, 4>(),
         .usable = own ? departure.own_usable : departure.begin + arrival.usable * departure.pace});
    if (!arrived.back().tiles.empty()) continue;
    for (const Tensor tensor : tensors) {
      arrived.back().tiles.push_back(builder_.tile(tensor, false, heads, arrival.blocks));
    }
  }

  // Messages: one per hop and tensor. Hops of step 0 leave in `first`.
  const std::vector<int> index = index_by_origin(arrived);
  const Collective collective =
      options_.route->movement() == Movement::Gather ? Collective::AllGather : Collective::None;
  const auto step_of = [&](const Hop& hop) {
    return hop.step == 0 ? departure.first : departure.begin + hop.step * departure.pace;
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (const auto& [hop, blocks] : out_) {
      // Own blocks leave from the own tile, so they need not wait for the copy of a gather.
      const int tile =
          hop.origin == options_.me ? own_tiles[t] : arrived[index[hop.origin]].tiles[t];
      builder_.send(step_of(hop), options_.lane, options_.rank(hop.peer),
                    builder_.part(tile, heads, blocks), collective);
    }
    for (const auto& [hop, blocks] : in_) {
      builder_.recv(step_of(hop), options_.lane, options_.rank(hop.peer),
                    builder_.part(arrived[index[hop.origin]].tiles[t], blocks), collective);
    }
  }
  return arrived;
}

/// Parts of a gather share the partial tiles of the first part, as they share their tiles.
void Axis::open_sums(std::vector<Arrived>& arrived, const std::vector<Tensor>& tensors) {
  const BlockIds all = gathers() ? joined(arrived).blocks : BlockIds();
  for (Arrived& part : arrived) {
    if (!part.sums.empty()) continue;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const bool first = &part == &arrived.front() || !gathers();
      part.sums.push_back(
          first ? builder_.tile(tensors[t], true, part.heads, gathers() ? all : part.blocks)
                : arrived.front().sums[t]);
      builder_.compute(part.usable, OpKind::Clear, {builder_.part(part.sums[t], part.blocks)});
    }
  }
}

Arrived Axis::joined(const std::vector<Arrived>& parts) {
  Arrived all = parts.front();
  std::vector<int> blocks;
  all.origins.clear();
  for (const Arrived& part : parts) {
    for (const int origin : part.origins) all.origins.push_back(origin);
    append(blocks, part.blocks);
    all.usable = std::max(all.usable, part.usable);
  }
  sort_unique(blocks);
  all.blocks = blocks;
  return all;
}

/// Combines a sum that arrived into the rank's own: Out and Lse as a pair by log-sum-exp, gradients
/// by addition.
void Axis::combine(int step, const Arrived& into, const SmallVector<int, 2>& scratch) {
  const BlockIds& blocks = builder_[scratch[0]].blocks;
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

View Axis::own_sum(const std::vector<Arrived>& arrived, int tensor) const {
  return builder_.part(arrived[index_by_origin(arrived)[options_.me]].sums[tensor],
                       blocks_[options_.me]);
}

int Axis::collect(const std::vector<Arrived>& arrived, const Ready& ready) {
  return collect({&arrived, 1}, ready);
}

int Axis::collect(std::span<const std::vector<Arrived>> slices, const Ready& ready) {
  // Hops without blocks stay in the lists: their steps decide when the own sum is complete.
  const Hops hops = options_.return_route->collect(options_.me, ready);
  const std::vector<Move> out = moves(hops.out);
  const std::vector<Move> in = moves(hops.in);
  int complete = 0;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    complete = std::max(complete, collect(slices[s], out, in, ready, static_cast<int>(s)));
  }
  return complete;
}

/// The messages and merges of one slice, `later` steps after those of the first.
int Axis::collect(const std::vector<Arrived>& arrived, const std::vector<Move>& out,
                  const std::vector<Move>& in, const Ready& ready, int later) {
  const std::vector<int> index = index_by_origin(arrived);
  const Collective collective = options_.return_route->movement() == Movement::Gather
                                    ? Collective::ReduceScatter
                                    : Collective::None;
  int complete = ready(options_.me, options_.me) + later;
  // Sums of other members leave.
  for (const auto& [hop, blocks] : out) {
    for (const int sum : arrived[index[hop.origin]].sums) {
      builder_.send_sum(hop.step + later, options_.return_lane, options_.rank(hop.peer),
                        builder_.part(sum, blocks), collective);
    }
  }
  // Sums arrive: the rank's own, and those of others that it carries on. One that arrives before
  // the rank's own share is ready waits for it in a scratch tile.
  for (const auto& [hop, blocks] : in) {
    const Arrived& into = arrived[index[hop.origin]];
    const int step = std::max(hop.step, ready(options_.me, hop.origin)) + later;
    // Hops without blocks count as well: `complete` must be the same on all members, because all
    // of them go on in the step after it, for example with an all-to-all.
    if (hop.origin == options_.me) complete = std::max(complete, step);
    if (blocks.empty()) continue;
    SmallVector<int, 2> scratch;
    for (const int sum : into.sums) {
      scratch.push_back(builder_.arriving_sum(builder_[sum].tensor, into.heads, blocks));
      builder_.recv(hop.step + later, options_.return_lane, options_.rank(hop.peer),
                    builder_.whole(scratch.back()), collective);
    }
    combine(step, into, scratch);
  }
  return complete;
}

}  // namespace armillary::plan
