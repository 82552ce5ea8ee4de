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
  std::map<int, Parts> by_step;
  for (int origin = 0; origin < options_.route->size(); ++origin) {
    if (origin == options_.me) continue;
    Parts& parts = by_step[options_.route->usable(options_.me, origin)];
    parts.origins.push_back(origin);
    append(parts.blocks, needed_of(origin));
  }
  one_call_ = options_.one_call && by_step.size() == 1;
  const std::vector<int> mine = one_call_ ? needed_of(options_.me) : std::vector<int>{};
  own_needed_ = mine;
  for (auto& [usable, parts] : by_step) {
    std::vector<int> tile_blocks = parts.blocks;
    append(tile_blocks, mine);
    if (one_call_) {  // Sums are of all own blocks, also of those that see nothing: results.
      parts.origins.push_back(options_.me);
      append(parts.blocks, options_.blocks(options_.me));
    }
    sort_unique(tile_blocks);
    sort_unique(parts.blocks);
    arrivals_.push_back({usable, std::move(parts.origins), parts.blocks, tile_blocks});
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

std::vector<Held> Axis::spread(const std::vector<Tensor>& tensors,
                               const std::vector<int>& own_tiles, Heads heads, int own_usable,
                               int departure) {
  std::vector<Held> held;
  if (!one_call_) {
    held.push_back({.heads = heads,
                    .origins = {options_.me},
                    .blocks = options_.blocks(options_.me),
                    .tiles = own_tiles,
                    .usable = own_usable});
  }
  for (const Arrival& arrival : arrivals_) {
    held.push_back({.heads = heads,
                    .origins = arrival.origins,
                    .blocks = arrival.blocks,
                    .usable = departure + arrival.usable});
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const int tile = builder_.tile(tensors[t], false, heads, arrival.tile_blocks);
      held.back().tiles.push_back(tile);
      if (!one_call_) continue;
      builder_.compute(
          departure, OpKind::Copy,
          {builder_.part(tile, own_needed_), builder_.part(own_tiles[t], heads, own_needed_)});
    }
  }
  const std::vector<int> holder = holders(held);
  const Collective collective =
      options_.route->movement() == Movement::Gather ? Collective::AllGather : Collective::None;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (const auto& [hop, blocks] : out_) {
      const int tile = hop.origin == options_.me ? own_tiles[t] : held[holder[hop.origin]].tiles[t];
      builder_.send(departure + hop.step, options_.lane, options_.rank(hop.peer),
                    builder_.part(tile, heads, blocks), collective);
    }
    for (const auto& [hop, blocks] : in_) {
      builder_.recv(departure + hop.step, options_.lane, options_.rank(hop.peer),
                    builder_.part(held[holder[hop.origin]].tiles[t], blocks), collective);
    }
  }
  return held;
}

void Axis::open_sums(std::vector<Held>& held, const std::vector<Tensor>& tensors) {
  for (Held& entry : held) {
    for (const Tensor tensor : tensors) {
      entry.sums.push_back(builder_.tile(tensor, true, entry.heads, entry.blocks));
      builder_.compute(entry.usable, OpKind::Clear, {builder_.whole(entry.sums.back())});
    }
  }
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
