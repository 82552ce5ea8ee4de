#include "armillary/plan/strategies/kv_transpose.h"

namespace armillary::plan {

KvTranspose::KvTranspose(ProgramBuilder& builder, const GridContext& context, Rank rank,
                         Lanes lanes)
    : builder_(builder),
      needs_(context.needs),
      grid_(context.grid),
      place_(place_of(context.grid, rank)),
      lanes_(lanes) {}

/// True if this rank holds its own K, V.

bool KvTranspose::stays() const {
  const GridPlace source = kv_source(grid_, place_);
  return source.i == place_.i && source.j == place_.j;
}

std::vector<int> KvTranspose::held_blocks() const {
  std::vector<int> used;
  for (const int block : needs_.held_kv_blocks(place_.i, place_.j)) {
    if (stays() || needs_.kv_used(block)) used.push_back(block);
  }
  return used;
}

int KvTranspose::to_holder(int step, int tile) {
  if (stays()) return tile;
  std::vector<int> used;
  for (const int block : builder_[tile].blocks) {
    if (needs_.kv_used(block)) used.push_back(block);
  }
  const int arrived =
      builder_.tile(builder_[tile].tensor, false, builder_[tile].heads, held_blocks());
  builder_.send(step, lanes_.out, rank_of(grid_, kv_holder(grid_, place_)),
                builder_.part(tile, used));
  builder_.recv(step, lanes_.out, rank_of(grid_, kv_source(grid_, place_)),
                builder_.whole(arrived));
  return arrived;
}

void KvTranspose::to_owner(int step, const View& sum, int home) {
  if (stays()) {
    builder_.compute(step, OpKind::Copy, {builder_.part(home, sum.heads, sum.blocks), sum});
    return;
  }
  // The sum that was computed here is rounded and returns to its owner; this rank's own gradient
  // arrives from its holder.
  const Tensor tensor = builder_[home].tensor;
  std::vector<int> used;
  std::vector<int> unused;
  for (const int block : needs_.kv_blocks(place_.i, place_.j)) {
    (needs_.kv_used(block) ? used : unused).push_back(block);
  }
  const int complete = builder_.tile(tensor, false, sum.heads, held_blocks());
  builder_.compute(
      step, OpKind::Copy,
      {builder_.whole(complete), builder_.part(sum.tile, sum.heads, builder_[complete].blocks)});
  builder_.send(step + 1, lanes_.back, rank_of(grid_, kv_source(grid_, place_)),
                builder_.whole(complete));
  builder_.recv(step + 1, lanes_.back, rank_of(grid_, kv_holder(grid_, place_)),
                builder_.part(home, sum.heads, used));
  // Own blocks that no query sees did not travel: their gradient is zero.
  const int zero = builder_.tile(tensor, true, sum.heads, unused);
  builder_.compute(step, OpKind::Clear, {builder_.whole(zero)});
  builder_.compute(step, OpKind::Copy,
                   {builder_.part(home, sum.heads, unused), builder_.whole(zero)});
}

}  // namespace armillary::plan
