// amx_seen.h: a mask as words of bits, for chunks of 32 keys and groups of 32 queries.
#pragma once

#include "armillary/kernel/cpu/amx.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Which keys the queries of a tile see: a bit a key, a word a query and chunk. Memory for `floats`
/// is given; without ranges only the last chunk has words, which are the same for all queries.
class Seen {
 public:
  enum class Kind : std::uint8_t { None, Partial, Whole };

  /// Memory of a tile, for words and kinds.
  static constexpr int floats(int groups, int chunks) { return groups * chunks * (kPair + 1); }

  Seen(const TilePairs& pairs, float* memory)
      : pairs_(pairs),
        chunks_((pairs.k_rows + kPair - 1) / kPair),
        groups_((pairs.q_rows + kPair - 1) / kPair),
        words_(reinterpret_cast<std::uint32_t*>(memory)),
        kinds_(reinterpret_cast<Kind*>(memory + groups_ * chunks_ * kPair)) {
    if (pairs.ranges != nullptr) {
      mark();
    } else if (pairs.k_rows % kPair != 0) {
      const std::uint32_t tail = (1u << pairs.k_rows % kPair) - 1;
      for (int i = 0; i < kPair; ++i) words_[i] = tail;
    }
  }

  int chunks() const { return chunks_; }
  int groups() const { return groups_; }

  /// Words of the 32 queries of a group.
  const std::uint32_t* words(int group, int chunk) const {
    return pairs_.ranges == nullptr ? words_ : words_ + (group * chunks_ + chunk) * kPair;
  }

  Kind kind(int group, int chunk) const {
    if (pairs_.ranges == nullptr) {
      return (chunk + 1) * kPair <= pairs_.k_rows ? Kind::Whole : Kind::Partial;
    }
    return kinds_[group * chunks_ + chunk];
  }

 private:
  /// The first range of each row is marked by rows, in vectors; later ones (a row has few) one by
  /// one.
  void mark() {
    const RowRange* range = pairs_.ranges;
    const RowRange* const end = range + pairs_.range_count;
    for (int group = 0; group < groups_; ++group) {
      std::int32_t begins[kPair] = {};
      std::int32_t ends[kPair] = {};
      const RowRange* const first = range;
      for (; range != end && range->row < (group + 1) * kPair; ++range) {
        if (range != first && range->row == range[-1].row) continue;
        begins[range->row % kPair] = range->begin;
        ends[range->row % kPair] = range->end;
      }
      mark_group(group, begins, ends);
      for (const RowRange* later = first; later != range; ++later) {
        if (later != first && later->row == later[-1].row) mark_range(*later);
      }
      find_kinds(group);
    }
  }
  void mark_group(int group, const std::int32_t* begins, const std::int32_t* ends) {
    std::uint32_t* word = words_ + group * chunks_ * kPair;
    for (int key = 0; key < chunks_ * kPair; key += kPair, word += kPair) {
      for (int i = 0; i < kPair; ++i) word[i] = below(ends[i] - key) & ~below(begins[i] - key);
    }
  }
  /// The bits of `keys` keys, at most 32 and at least 0.
  ARMILLARY_INLINE static std::uint32_t below(std::int32_t keys) {
    const std::uint32_t some = (1u << (keys & (kPair - 1))) - 1;
    return keys <= 0 ? 0 : keys >= kPair ? ~0u : some;
  }
  void mark_range(const RowRange& range) {
    std::uint32_t* const word = words_ + range.row / kPair * chunks_ * kPair + range.row % kPair;
    for (int chunk = range.begin / kPair; chunk * kPair < range.end; ++chunk) {
      word[chunk * kPair] |= below(range.end - chunk * kPair) & ~below(range.begin - chunk * kPair);
    }
  }
  void find_kinds(int group) {
    const int left = pairs_.q_rows - group * kPair;
    const int rows = left < kPair ? left : kPair;
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const std::uint32_t* const of_group = words(group, chunk);
      std::uint32_t any = 0;
      std::uint32_t every = ~0u;
      for (int i = 0; i < kPair; ++i) any |= of_group[i];
      if (rows == kPair) {
        for (int i = 0; i < kPair; ++i) every &= of_group[i];
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
