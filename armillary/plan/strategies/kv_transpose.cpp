#include "armillary/plan/strategies/kv_transpose.h"

namespace armillary::plan {

KvTranspose::KvTranspose(ProgramBuilder& builder, const Needs& needs, const Grid& grid, Rank rank,
                         Lanes lanes)
    : builder_(builder), needs_(needs), grid_(grid), place_(place_of(grid, rank)), lanes_(lanes) {}

bool KvTranspose::stays() const {
  const Place source = kv_source(grid_, place_);
  return source.i == place_.i && source.j == place_.j;
}

std::vector<int> KvTranspose::held_blocks() const {
  std::vector<int> used;
  for (const int block : needs_.held_kv_blocks(place_.i, place_.j)) {
    if (stays() || needs_.kv_used(block)) used.push_back(block);
  }
  return used;
}

int KvTranspose::there(int step, int tile) {
  if (stays()) return tile;
  std::vector<int> used;
  for (const int block : builder_[tile].blocks) {
    if (needs_.kv_used(block)) used.push_back(block);
  }
  const int held = builder_.tile(builder_[tile].tensor, false, builder_[tile].heads, held_blocks());
  builder_.send(step, lanes_.there, rank_of(grid_, kv_holder(grid_, place_)),
                builder_.part(tile, used));
  builder_.recv(step, lanes_.there, rank_of(grid_, kv_source(grid_, place_)), builder_.whole(held));
  return held;
}

void KvTranspose::back(int step, const View& sum, int home) {
  if (stays()) {
    builder_.compute(step, OpKind::Copy, {builder_.part(home, sum.heads, sum.blocks), sum});
    return;
  }
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
  const int zero = builder_.tile(tensor, true, sum.heads, unused);
  builder_.compute(step, OpKind::Clear, {builder_.whole(zero)});
  builder_.compute(step, OpKind::Copy,
                   {builder_.part(home, sum.heads, unused), builder_.whole(zero)});
}

}  // namespace armillary::plan
