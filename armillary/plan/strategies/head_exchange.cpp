// head_exchange.cpp: messages of the two all-to-alls.
//
// Every exchange is written the same way: one message to and one from each of the u - 1 partners,
// and a copy of the part that stays. Only gradients of KV heads differ, because a head may have
// several readers: `shared_heads` cuts the KV heads where the set of readers changes, and each
// range is sent as a final gradient (one reader) or summed at home (several).
#include "armillary/plan/strategies/head_exchange.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "armillary/core/error.h"

namespace armillary::plan {

HeadExchange::HeadExchange(ProgramBuilder& builder, const GridContext& context, Rank rank)
    : builder_(builder),
      problem_(context.problem),
      blocks_(context.blocks),
      needs_(context.needs),
      grid_(context.grid),
      place_(place_of(context.grid, rank)) {}

Heads HeadExchange::group_heads(Tensor tensor, int h) const {
  const Heads q_heads = head_group(problem_, grid_, h);
  return is_kv(tensor) ? kv_heads_of(problem_, q_heads) : q_heads;
}

Heads HeadExchange::all_heads(Tensor tensor) const {
  return {0, is_kv(tensor) ? problem_.kv_heads : problem_.heads};
}

const std::vector<int>& HeadExchange::super_block(Tensor tensor) const {
  return is_kv(tensor) ? needs_.kv_blocks(place_.i, place_.j) : needs_.q_blocks(place_.i, place_.j);
}

std::vector<int> HeadExchange::used_blocks(Tensor tensor) const {
  if (grid_.u == 1) return super_block(tensor);
  std::vector<int> used;
  for (const int block : super_block(tensor)) {
    if (is_kv(tensor) ? needs_.kv_used(block) : needs_.q_used(block)) used.push_back(block);
  }
  return used;
}

/// Those of `blocks` that the partner with head group h owns.
std::vector<int> HeadExchange::blocks_of_partner(const std::vector<int>& blocks, Tensor tensor,
                                                 int h) const {
  std::vector<int> owned;
  for (const int block : blocks) {
    if (blocks_of(blocks_, tensor)[block].owner == partner(h)) owned.push_back(block);
  }
  return owned;
}

std::vector<int> HeadExchange::own_blocks(Tensor tensor) const {
  return blocks_of_partner(super_block(tensor), tensor, place_.h);
}

int HeadExchange::to_grid(int step, int home) {
  if (grid_.u == 1) return home;
  const Tensor tensor = builder_[home].tensor;
  const Heads mine = group_heads(tensor, place_.h);
  // Delta is computed for every query block, so dOut travels whole.
  const std::vector<int> used = tensor == Tensor::DOut ? super_block(tensor) : used_blocks(tensor);
  const std::vector<int> own = blocks_of_partner(used, tensor, place_.h);
  const int grid_tile = builder_.tile(tensor, false, mine, used);
  for (int h = 0; h < grid_.u; ++h) {
    if (h == place_.h) continue;
    builder_.send(step, kHeadLane, partner(h), builder_.part(home, group_heads(tensor, h), own),
                  Collective::AllToAll);
    builder_.recv(step, kHeadLane, partner(h),
                  builder_.part(grid_tile, blocks_of_partner(used, tensor, h)),
                  Collective::AllToAll);
  }
  builder_.compute(step, OpKind::Copy,
                   {builder_.part(grid_tile, own), builder_.part(home, mine, own)});
  return grid_tile;
}

void HeadExchange::to_home(int step, int grid_tile, int home) {
  const Tensor tensor = builder_[home].tensor;
  const std::vector<int> own = own_blocks(tensor);
  for (int h = 0; h < grid_.u; ++h) {
    if (h == place_.h) continue;
    builder_.send(step, kHeadLane, partner(h),
                  builder_.part(grid_tile, blocks_of_partner(super_block(tensor), tensor, h)),
                  Collective::AllToAll);
    builder_.recv(step, kHeadLane, partner(h), builder_.part(home, group_heads(tensor, h), own),
                  Collective::AllToAll);
  }
  builder_.compute(
      step, OpKind::Copy,
      {builder_.part(home, group_heads(tensor, place_.h), own), builder_.part(grid_tile, own)});
}

/// The KV heads, cut wherever a head group or one of its slices begins or ends. With 3 KV heads and
/// u = 2 the groups may read heads {0, 1} and {1, 2}: the ranges are 0, 1 (two readers) and 2.
std::vector<HeadExchange::SharedHeads> HeadExchange::shared_heads(int slices) const {
  std::set<int> borders{0, problem_.kv_heads};
  for (int h = 0; h < grid_.u; ++h) {
    for (int s = 0; s < slices; ++s) {
      const Heads slice = head_slice(group_heads(Tensor::K, h), slices, s);
      borders.insert({slice.begin, slice.end});
    }
  }
  std::vector<SharedHeads> shared;
  for (auto begin = borders.begin(); std::next(begin) != borders.end(); ++begin) {
    shared.push_back({{*begin, *std::next(begin)}, {}});
    for (int h = 0; h < grid_.u; ++h) {
      if (group_heads(Tensor::K, h).contains(shared.back().heads)) {
        shared.back().readers.push_back(h);
      }
    }
  }
  return shared;
}

/// Every rank goes through the ranges in the same order, so messages of two ranks match.
void HeadExchange::gradients_to_home(int step, const std::vector<View>& sums, int home) {
  for (const SharedHeads& shared : shared_heads(static_cast<int>(sums.size()))) {
    const auto slice = std::find_if(sums.begin(), sums.end(), [&](const View& view) {
      return view.heads.contains(shared.heads);
    });
    // -1 if this rank's head group does not read these heads.
    const int sum = slice == sums.end() ? -1 : slice->tile;
    if (shared.readers.size() > 1) {
      sum_at_home(step, sum, home, shared);
      continue;
    }
    // One head group made the whole gradient: it is complete and travels in the input dtype.
    const Tensor tensor = builder_[home].tensor;
    const int reader = shared.readers[0];
    const View whole_home = builder_.part(home, shared.heads, own_blocks(tensor));
    if (reader != place_.h) {
      builder_.recv(step, kHeadLane, partner(reader), whole_home, Collective::AllToAll);
      continue;
    }
    // This rank made it: round it in the step before, then send each partner its blocks.
    const int complete = builder_.tile(tensor, false, shared.heads, super_block(tensor));
    builder_.compute(
        step - 1, OpKind::Copy,
        {builder_.whole(complete), builder_.part(sum, shared.heads, super_block(tensor))});
    for (int h = 0; h < grid_.u; ++h) {
      const View view = builder_.part(complete, blocks_of_partner(super_block(tensor), tensor, h));
      if (h == place_.h) {
        builder_.compute(step, OpKind::Copy, {whole_home, view});
      } else {
        builder_.send(step, kHeadLane, partner(h), view, Collective::AllToAll);
      }
    }
  }
}

/// Adds the partial gradients of all readers, and rounds the total into the home tile.
void HeadExchange::sum_at_home(int step, int sum, int home, const SharedHeads& shared) {
  const Tensor tensor = builder_[home].tensor;
  const std::vector<int> own = own_blocks(tensor);
  const int total = builder_.tile(tensor, true, shared.heads, own);
  builder_.compute(step, OpKind::Clear, {builder_.whole(total)});
  // Readers send each partner the partial gradients of its tokens.
  const bool reading = std::count(shared.readers.begin(), shared.readers.end(), place_.h) > 0;
  for (int h = 0; h < grid_.u && reading; ++h) {
    if (h == place_.h) continue;
    builder_.send_sum(
        step, kHeadLane, partner(h),
        builder_.part(sum, shared.heads, blocks_of_partner(super_block(tensor), tensor, h)),
        Collective::AllToAll);
  }
  // The order of head groups is the same on all ranks and in all runs, and so are the bits.
  for (const int h : shared.readers) {
    if (h == place_.h) {
      builder_.compute(step, OpKind::Add,
                       {builder_.whole(total), builder_.part(sum, shared.heads, own)});
      continue;
    }
    const int scratch = builder_.arriving_sum(tensor, shared.heads, own);
    builder_.recv(step, kHeadLane, partner(h), builder_.whole(scratch), Collective::AllToAll);
    builder_.compute(step, OpKind::Add, {builder_.whole(total), builder_.whole(scratch)});
  }
  builder_.compute(step, OpKind::Copy,
                   {builder_.part(home, shared.heads, own), builder_.whole(total)});
}

}  // namespace armillary::plan
