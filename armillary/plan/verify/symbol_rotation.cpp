#include "armillary/plan/verify/symbol_rotation.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::plan::verifier {
namespace {

/// The first class from `from` on that is in a set, or is not; the number of bits if there is none.
int next_in(std::span<const std::uint64_t> set, int from, bool in_set) {
  for (std::size_t w = static_cast<std::size_t>(from) / 64; w < set.size(); ++w) {
    std::uint64_t word = in_set ? set[w] : ~set[w];
    if (w == static_cast<std::size_t>(from) / 64) word &= ~std::uint64_t{0} << (from % 64);
    if (word != 0) return static_cast<int>(w * 64) + std::countr_zero(word);
  }
  return static_cast<int>(set.size() * 64);
}

/// Adds the classes first .. end - 1 to a set, word by word.
void put_range(std::span<std::uint64_t> set, int first, int end) {
  while (first < end) {
    const int stop = std::min(end, (first / 64 + 1) * 64);
    const int count = stop - first;
    const std::uint64_t ones = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    set[first / 64] |= ones << (first % 64);
    first = stop;
  }
}

}  // namespace

int SymbolRotation::rotated(const Classes& classes, int block_class,
                            const Fold::Rotation& rotation) const {
  const int per = per_owner(classes);
  return fold_->rotated(block_class / per, rotation) * per + block_class % per;
}

int SymbolRotation::query_orbit(int block_class) const {
  if (none()) return block_class;
  const Classes& classes = sides_.q.blocks;
  const Rank owner = block_class / per_owner(classes);
  return rotated(classes, block_class, fold_->inverse(fold_->rotation_to(owner)));
}

// A run of classes is cut where its owners part.
void SymbolRotation::renumber(const Classes& classes, const Fold::Rotation& rotation,
                              std::span<const std::uint64_t> from,
                              std::span<std::uint64_t> to) const {
  const int per = per_owner(classes);
  const int bits = static_cast<int>(from.size() * 64);
  for (int first = next_in(from, 0, true); first < bits;) {
    const int end = next_in(from, first, false);
    while (first < end) {
      const Rank owner = first / per;
      const int stop = std::min(end, (owner + fold_->moved_together(owner, rotation)) * per);
      const int begin = rotated(classes, first, rotation);
      put_range(to, begin, begin + stop - first);
      first = stop;
    }
    first = end < bits ? next_in(from, end, true) : bits;
  }
}

void SymbolRotation::copy(const ViewCells& source, Tensor tensor, Rank peer,
                          const ViewCells& target) const {
  const Fold::Rotation back = fold_->inverse(fold_->rotation_to(peer));
  const Classes& blocks = sides_.of(tensor).blocks;
  const Classes& others = is_kv(tensor) ? sides_.q.blocks : sides_.kv.blocks;
  // The cells of the send in the order of the receive: rotated, blocks may stand in another order.
  std::vector<std::tuple<int, int, int>> cells;  // Block class, head class, cell.
  for (const ViewCells::Cell& cell : source) {
    cells.emplace_back(rotated(blocks, cell.block_class, back), cell.head_class, cell.cell);
  }
  std::sort(cells.begin(), cells.end());
  auto from = cells.begin();
  target.define();
  for (const ViewCells::Cell& cell : target) {
    const auto [block_class, head_class, its_cell] = *from++;
    ARMILLARY_CHECK(block_class == cell.block_class && head_class == cell.head_class);
    if (target.contributions().empty()) continue;
    target.contributions().copy(
        cell.cell, source.contributions(), its_cell,
        [&](std::span<const std::uint64_t> set, std::span<std::uint64_t> rotated_set) {
          renumber(others, back, set, rotated_set);
        });
  }
}

}  // namespace armillary::plan::verifier
