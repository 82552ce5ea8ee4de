// amx_seen.h: a mask as words of bits, for chunks of 32 keys and groups of 32 queries.
#pragma once

#include "armillary/kernel/cpu/amx.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Which keys the queries of a tile see: a bit a key, a word a query and chunk. Memory is given;
/// without ranges only the last chunk has words, which are the same for all queries.
class Seen {
 public:
  Seen(const TilePairs& pairs, std::uint32_t* words) : pairs_(pairs), words_(words) {
    chunks_ = (pairs.k_rows + kPair - 1) / kPair;
    groups_ = (pairs.q_rows + kPair - 1) / kPair;
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

  enum class Kind : std::uint8_t { None, Partial, Whole };
  Kind kind(int group, int chunk) const {
    if (pairs_.ranges == nullptr) {
      return (chunk + 1) * kPair <= pairs_.k_rows ? Kind::Whole : Kind::Partial;
    }
    const std::uint32_t* const of_group = words(group, chunk);
    std::uint32_t any = 0;
    std::uint32_t every = ~0u;
    for (int i = 0; i < kPair; ++i) any |= of_group[i];
    const int left = pairs_.q_rows - group * kPair;
    if (left >= kPair) {
      for (int i = 0; i < kPair; ++i) every &= of_group[i];
    } else {
      for (int i = 0; i < left; ++i) every &= of_group[i];
    }
    return any == 0 ? Kind::None : every == ~0u ? Kind::Whole : Kind::Partial;
  }

 private:
  void mark() {
    __builtin_memset(words_, 0, sizeof(std::uint32_t) * groups_ * chunks_ * kPair);
    for (int i = 0; i < pairs_.range_count; ++i) {
      const RowRange& range = pairs_.ranges[i];
      std::uint32_t* const of_row =
          words_ + range.row / kPair * chunks_ * kPair + range.row % kPair;
      for (int begin = range.begin; begin < range.end;) {
        const int first = begin % kPair;
        const int left = range.end - begin < kPair - first ? range.end - begin : kPair - first;
        of_row[begin / kPair * kPair] |= (left == kPair ? ~0u : (1u << left) - 1) << first;
        begin += left;
      }
    }
  }

  const TilePairs& pairs_;
  std::uint32_t* words_;
  int chunks_;
  int groups_;
};

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
