// amx_visibility-inl.h: the visible pairs of a tile as bits, for chunks of 32 keys and groups of 32
// queries: one word for each query and chunk, one bit for each key.
//
// Every chunk of a group is classified, so that hidden chunks are skipped and whole ones need no
// masking.
#pragma once

#include "armillary/kernel/cpu/amx-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// The bits of one tile. The caller gives memory for `floats` floats. Without ranges only the last
/// chunk needs words, which are the same for all queries.
class TileVisibility {
 public:
  /// No pair of a chunk and group is visible, some are, or all are.
  enum class Kind : std::uint8_t { None, Partial, Whole };

  /// Floats of memory for the words and kinds of a tile.
  static constexpr int floats(int groups, int chunks) {
    return groups * chunks * (kDoubleSide + 1);
  }

  TileVisibility(const TilePairs& pairs, float* memory)
      : pairs_(pairs),
        chunks_((pairs.k_rows + kDoubleSide - 1) / kDoubleSide),
        groups_((pairs.q_rows + kDoubleSide - 1) / kDoubleSide),
        words_(reinterpret_cast<std::uint32_t*>(memory)),
        kinds_(reinterpret_cast<Kind*>(memory + groups_ * chunks_ * kDoubleSide)) {
    if (pairs.ranges != nullptr) {
      mark();
    } else if (pairs.k_rows % kDoubleSide != 0) {
      const std::uint32_t tail = (1u << pairs.k_rows % kDoubleSide) - 1;
      for (int i = 0; i < kDoubleSide; ++i) words_[i] = tail;
    }
  }

  int chunks() const { return chunks_; }
  int groups() const { return groups_; }

  /// The words of the 32 queries of a group, for one chunk.
  const std::uint32_t* words(int group, int chunk) const {
    return pairs_.ranges == nullptr ? words_ : words_ + (group * chunks_ + chunk) * kDoubleSide;
  }

  Kind kind(int group, int chunk) const {
    if (pairs_.ranges == nullptr) {
      return (chunk + 1) * kDoubleSide <= pairs_.k_rows ? Kind::Whole : Kind::Partial;
    }
    return kinds_[group * chunks_ + chunk];
  }

 private:
  /// Sets the bits of all ranges. The first range of each row is marked in vectors, 16 rows at
  /// once; further ranges of a row, which are few, one by one.
  void mark() {
    const RowRange* range = pairs_.ranges;
    const RowRange* const end = range + pairs_.range_count;
    for (int group = 0; group < groups_; ++group) {
      std::int32_t begins[kDoubleSide] = {};
      std::int32_t ends[kDoubleSide] = {};
      const RowRange* const first = range;
      for (; range != end && range->row < (group + 1) * kDoubleSide; ++range) {
        if (range != first && range->row == range[-1].row) continue;
        begins[range->row % kDoubleSide] = range->begin;
        ends[range->row % kDoubleSide] = range->end;
      }
      mark_group(group, begins, ends);
      for (const RowRange* later = first; later != range; ++later) {
        if (later != first && later->row == later[-1].row) mark_range(*later);
      }
      find_kinds(group);
    }
  }
  /// Marks one range [begins[i], ends[i]) for each row i of a group.
  void mark_group(int group, const std::int32_t* begins, const std::int32_t* ends) {
    std::uint32_t* word = words_ + group * chunks_ * kDoubleSide;
    for (int key = 0; key < chunks_ * kDoubleSide; key += kDoubleSide, word += kDoubleSide) {
      for (int i = 0; i < kDoubleSide; ++i)
        word[i] = below(ends[i] - key) & ~below(begins[i] - key);
    }
  }
  /// The lowest `keys` bits, clamped to 0 .. 32.
  ARMILLARY_INLINE static std::uint32_t below(std::int32_t keys) {
    const std::uint32_t some = (1u << (keys & (kDoubleSide - 1))) - 1;
    return keys <= 0 ? 0 : keys >= kDoubleSide ? ~0u : some;
  }
  /// Adds one range to the words of its row.
  void mark_range(const RowRange& range) {
    std::uint32_t* const word =
        words_ + range.row / kDoubleSide * chunks_ * kDoubleSide + range.row % kDoubleSide;
    for (int chunk = range.begin / kDoubleSide; chunk * kDoubleSide < range.end; ++chunk) {
      word[chunk * kDoubleSide] |=
          below(range.end - chunk * kDoubleSide) & ~below(range.begin - chunk * kDoubleSide);
    }
  }
  /// Classifies the chunks of a group, over its rows that exist.
  void find_kinds(int group) {
    const int left = pairs_.q_rows - group * kDoubleSide;
    const int rows = left < kDoubleSide ? left : kDoubleSide;
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const std::uint32_t* const of_group = words(group, chunk);
      std::uint32_t any = 0;
      std::uint32_t every = ~0u;
      for (int i = 0; i < kDoubleSide; ++i) any |= of_group[i];
      if (rows == kDoubleSide) {
        for (int i = 0; i < kDoubleSide; ++i) every &= of_group[i];
      } else {
        for (int i = 0; i < rows; ++i) every &= of_group[i];
      }
      kinds_[group * chunks_ + chunk] = any == 0       ? Kind::None
                                        : every == ~0u ? Kind::Whole
                                                       : Kind::Partial;
    }
  }

  const TilePairs& pairs_;
  int chunks_;
  int groups_;
  std::uint32_t* words_;
  Kind* kinds_;
};

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
