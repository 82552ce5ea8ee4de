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
    : builder_(builder), options_(std::move(options)) {}

template <class Keep>
std::vector<int> Axis::blocks_where(int origin, const Keep& keep) const {
  std::vector<int> blocks = options_.blocks(origin);
  std::erase_if(blocks, [&](int block) { return !keep(block); });
  return blocks;
}

std::vector<int> Axis::moving_on(const Hop& hop) const {
  return blocks_where(hop.origin, [&](int block) {
    return makes(hop, [&](int member) { return options_.needs(member, block); });
  });
}

std::vector<std::vector<int>> Axis::moving_on(const std::vector<Hop>& hops) const {
  std::vector<std::vector<int>> blocks;
  blocks.reserve(hops.size());
  for (const Hop& hop : hops) blocks.push_back(moving_on(hop));
  return blocks;
}

std::vector<int> Axis::needed_of(int origin) const {
  return blocks_where(origin, [&](int block) { return options_.needs(options_.me, block); });
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
                               const std::vector<int>& own_tiles, int own_usable, int departure) {
  const Hops hops = options_.route->spread(options_.me);
  const std::vector<int>& own = options_.blocks(options_.me);
  std::vector<Held> held{{.heads = options_.heads,
                          .origins = {options_.me},
                          .blocks = own,
                          .tiles = own_tiles,
                          .usable = own_usable}};
  std::map<int, Held> arrivals;  // by step: what becomes usable together is one tile
  for (int origin = 0; origin < options_.route->size(); ++origin) {
    if (origin == options_.me) continue;
    const int usable = departure + options_.route->usable(options_.me, origin);
    Held& arrival = arrivals[usable];
    arrival.heads = options_.heads;
    arrival.usable = usable;
    arrival.origins.push_back(origin);
    append(arrival.blocks, needed_of(origin));
  }
  const bool one_call = options_.one_call && arrivals.size() == 1;
  const std::vector<int> mine = one_call ? needed_of(options_.me) : std::vector<int>{};
  for (auto& [step, arrival] : arrivals) {
    std::vector<int> blocks = arrival.blocks;
    append(blocks, mine);
    if (one_call) {  // sums are of all own blocks, also of those that see nothing: they are results
      arrival.origins.push_back(options_.me);
      append(arrival.blocks, own);
    }
    sort_unique(blocks);
    sort_unique(arrival.blocks);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      arrival.tiles.push_back(builder_.tile(tensors[t], false, options_.heads, blocks));
      if (!one_call) continue;
      builder_.compute(departure, OpKind::Copy,
                       {builder_.part(arrival.tiles[t], mine),
                        builder_.part(own_tiles[t], options_.heads, mine)});
    }
    held.push_back(arrival);
  }
  if (one_call) held.erase(held.begin());
  const std::vector<int> holder = holders(held);
  const Collective collective =
      options_.route->movement() == Movement::Gather ? Collective::AllGather : Collective::None;
  const std::vector<std::vector<int>> out = moving_on(hops.out);
  const std::vector<std::vector<int>> in = moving_on(hops.in);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::size_t h = 0; h < out.size(); ++h) {
      const Hop& hop = hops.out[h];
      if (out[h].empty()) continue;
      const int tile = hop.origin == options_.me ? own_tiles[t] : held[holder[hop.origin]].tiles[t];
      builder_.send(departure + hop.step, options_.lane, options_.rank(hop.peer),
                    builder_.part(tile, options_.heads, out[h]), collective);
    }
    for (std::size_t h = 0; h < in.size(); ++h) {
      const Hop& hop = hops.in[h];
      if (in[h].empty()) continue;
      builder_.recv(departure + hop.step, options_.lane, options_.rank(hop.peer),
                    builder_.part(held[holder[hop.origin]].tiles[t], in[h]), collective);
    }
  }
  return held;
}

void Axis::open_sums(std::vector<Held>& held, const std::vector<Tensor>& tensors) {
  for (Held& entry : held) {
    for (const Tensor tensor : tensors) {
      entry.sums.push_back(builder_.tile(tensor, true, options_.heads, entry.blocks));
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
  const Hops hops = options_.home->collect(options_.me, ready);
  const std::vector<int> holder = holders(held);
  const Collective collective =
      options_.home->movement() == Movement::Gather ? Collective::ReduceScatter : Collective::None;
  int complete = ready(options_.me, options_.me);
  for (const Hop& hop : hops.out) {
    for (const int sum : held[holder[hop.origin]].sums) {
      builder_.send_sum(hop.step, options_.back_lane, options_.rank(hop.peer),
                        builder_.part(sum, moving_on(hop)), collective);
    }
  }
  for (const Hop& hop : hops.in) {
    const Held& into = held[holder[hop.origin]];
    const std::vector<int> blocks = moving_on(hop);
    const int step = std::max(hop.step, ready(options_.me, hop.origin));
    // The same for every member, whatever it receives: what follows is sent in that step by all.
    if (hop.origin == options_.me) complete = std::max(complete, step);
    if (blocks.empty()) continue;
    std::vector<int> scratch;
    for (const int sum : into.sums) {
      scratch.push_back(builder_.arriving_sum(builder_[sum].tensor, options_.heads, blocks));
      builder_.recv(hop.step, options_.back_lane, options_.rank(hop.peer),
                    builder_.whole(scratch.back()), collective);
    }
    combine(step, into, scratch);
  }
  return complete;
}

}  // namespace armillary::plan
