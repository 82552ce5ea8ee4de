#include "armillary/plan/strategies/axis.h"

#include <algorithm>
#include <map>
#include <utility>

namespace armillary::plan {
namespace {

void append(std::vector<int>& into, const std::vector<int>& more) {
  into.insert(into.end(), more.begin(), more.end());
}

void sort_unique(std::vector<int>& blocks) {
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

}  // namespace

Axis::Axis(ProgramBuilder& builder, Options options)
    : builder_(builder), options_(std::move(options)) {
  const Hops hops = options_.route->spread(options_.me);
  out_ = moves(hops.out);
  in_ = moves(hops.in);
  for (std::vector<Move>* moves : {&out_, &in_}) {
    std::erase_if(*moves, [](const Move& move) { return move.blocks.empty(); });
  }
  find_arrivals();
}

template <class Keep>
std::vector<int> Axis::blocks_where(int origin, const Keep& keep) const {
  std::vector<int> blocks = options_.blocks(origin);
  std::erase_if(blocks, [&](int block) { return !keep(block); });
  return blocks;
}

std::vector<Axis::Move> Axis::moves(const std::vector<Hop>& hops) const {
  std::vector<Move> moves;
  moves.reserve(hops.size());
  for (const Hop& hop : hops) {
    moves.push_back({hop, blocks_where(hop.origin, [&](int block) {
                       return makes(hop, [&](int member) { return options_.needs(member, block); });
                     })});
  }
  return moves;
}

std::vector<int> Axis::needed_of(int origin) const {
  return blocks_where(origin, [&](int block) { return options_.needs(options_.me, block); });
}

void Axis::find_arrivals() {
  struct Parts {
    std::vector<int> origins;
    std::vector<int> blocks;
  };
  const Route& route = *options_.route;
  std::map<int, Parts> by_step;
  for (int origin = 0; origin < route.size(); ++origin) {
    const bool own = origin == options_.me;
    const bool waits = gathers() && options_.gathered == Gathered::Whole;
    Parts& parts = by_step[waits ? route.last_usable() : route.usable(options_.me, origin)];
    parts.origins.push_back(origin);
    // Sums are of all own blocks, also of those that see nothing: results.
    append(parts.blocks, own ? options_.blocks(origin) : needed_of(origin));
  }
  for (auto& [usable, parts] : by_step) {
    sort_unique(parts.blocks);
    arrivals_.push_back({usable, std::move(parts.origins), parts.blocks});
  }
}

/// By member: what of `held` has its tiles.
std::vector<int> Axis::holders(const std::vector<Held>& held) const {
  std::vector<int> holders(options_.route->size(), -1);
  for (std::size_t h = 0; h < held.size(); ++h) {
    for (const int origin : held[h].origins) holders[origin] = static_cast<int>(h);
  }
  return holders;
}

/// A tile of each tensor for all that is needed, with a copy of the own part.
std::vector<int> Axis::gather(const std::vector<Tensor>& tensors, const std::vector<int>& own_tiles,
                              Heads heads, int step) {
  std::vector<int> all;
  for (int origin = 0; origin < options_.route->size(); ++origin) append(all, needed_of(origin));
  sort_unique(all);
  const BlockIds own = needed_of(options_.me);
  std::vector<int> tiles;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tiles.push_back(builder_.tile(tensors[t], false, heads, all));
    builder_.compute(step, OpKind::Copy,
                     {builder_.part(tiles[t], own), builder_.part(own_tiles[t], heads, own)});
  }
  return tiles;
}

std::vector<Held> Axis::spread(const std::vector<Tensor>& tensors,
                               const std::vector<int>& own_tiles, Heads heads,
                               const Departure& departure) {
  std::vector<int> all;
  if (gathers()) all = gather(tensors, own_tiles, heads, departure.begin);
  std::vector<Held> held;
  for (const Arrival& arrival : arrivals_) {
    const bool own = arrival.usable == 0;
    held.push_back(
        {.heads = heads,
         .origins = arrival.origins,
         .blocks = arrival.blocks,
         .tiles = gathers() ? all
                  : own     ? own_tiles
                            : std::vector<int>{},
         .usable = own ? departure.own_usable : departure.begin + arrival.usable * departure.pace});
    if (!held.back().tiles.empty()) continue;
    for (const Tensor tensor : tensors) {
      held.back().tiles.push_back(builder_.tile(tensor, false, heads, arrival.blocks));
    }
  }
  const std::vector<int> holder = holders(held);
  const Collective collective =
      options_.route->movement() == Movement::Gather ? Collective::AllGather : Collective::None;
  const auto step_of = [&](const Hop& hop) {
    return hop.step == 0 ? departure.first : departure.begin + hop.step * departure.pace;
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (const auto& [hop, blocks] : out_) {
      const int tile = hop.origin == options_.me ? own_tiles[t] : held[holder[hop.origin]].tiles[t];
      builder_.send(step_of(hop), options_.lane, options_.rank(hop.peer),
                    builder_.part(tile, heads, blocks), collective);
    }
    for (const auto& [hop, blocks] : in_) {
      builder_.recv(step_of(hop), options_.lane, options_.rank(hop.peer),
                    builder_.part(held[holder[hop.origin]].tiles[t], blocks), collective);
    }
  }
  return held;
}

void Axis::open_sums(std::vector<Held>& held, const std::vector<Tensor>& tensors) {
  const BlockIds all = gathers() ? joined(held).blocks : BlockIds();
  for (Held& part : held) {
    if (!part.sums.empty()) continue;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const bool first = &part == &held.front() || !gathers();
      part.sums.push_back(
          first ? builder_.tile(tensors[t], true, part.heads, gathers() ? all : part.blocks)
                : held.front().sums[t]);
      builder_.compute(part.usable, OpKind::Clear, {builder_.part(part.sums[t], part.blocks)});
    }
  }
}

Held Axis::joined(const std::vector<Held>& parts) {
  Held all = parts.front();
  std::vector<int> blocks;
  all.origins.clear();
  for (const Held& part : parts) {
    append(all.origins, part.origins);
    blocks.insert(blocks.end(), part.blocks.begin(), part.blocks.end());
    all.usable = std::max(all.usable, part.usable);
  }
  sort_unique(blocks);
  all.blocks = blocks;
  return all;
}

void Axis::combine(int step, const Held& into, const std::vector<int>& scratch) {
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

View Axis::own_sum(const std::vector<Held>& held, int tensor) const {
  return builder_.part(held[holders(held)[options_.me]].sums[tensor], options_.blocks(options_.me));
}

int Axis::collect(const std::vector<Held>& held, const Ready& ready) {
  return collect({&held, 1}, ready);
}

int Axis::collect(std::span<const std::vector<Held>> slices, const Ready& ready) {
  const Hops hops = options_.home->collect(options_.me, ready);
  const std::vector<Move> out = moves(hops.out);
  const std::vector<Move> in = moves(hops.in);
  int complete = 0;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    complete = std::max(complete, collect(slices[s], out, in, ready, static_cast<int>(s)));
  }
  return complete;
}

/// One slice, `later` steps after the first.
int Axis::collect(const std::vector<Held>& held, const std::vector<Move>& out,
                  const std::vector<Move>& in, const Ready& ready, int later) {
  const std::vector<int> holder = holders(held);
  const Collective collective =
      options_.home->movement() == Movement::Gather ? Collective::ReduceScatter : Collective::None;
  int complete = ready(options_.me, options_.me) + later;
  for (const auto& [hop, blocks] : out) {
    for (const int sum : held[holder[hop.origin]].sums) {
      builder_.send_sum(hop.step + later, options_.back_lane, options_.rank(hop.peer),
                        builder_.part(sum, blocks), collective);
    }
  }
  for (const auto& [hop, blocks] : in) {
    const Held& into = held[holder[hop.origin]];
    const int step = std::max(hop.step, ready(options_.me, hop.origin)) + later;
    // The same for every member, whatever it receives: what follows is sent in that step by all.
    if (hop.origin == options_.me) complete = std::max(complete, step);
    if (blocks.empty()) continue;
    std::vector<int> scratch;
    for (const int sum : into.sums) {
      scratch.push_back(builder_.arriving_sum(builder_[sum].tensor, into.heads, blocks));
      builder_.recv(hop.step + later, options_.back_lane, options_.rank(hop.peer),
                    builder_.whole(scratch.back()), collective);
    }
    combine(step, into, scratch);
  }
  return complete;
}

}  // namespace armillary::plan
