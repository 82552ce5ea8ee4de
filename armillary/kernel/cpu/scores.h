// scores.h: what both passes do to the scores of a tile: which of them exist, and score.h in
// numbers.
#pragma once

#include "armillary/kernel/cpu/features.h"
#include "armillary/kernel/cpu/math.h"
#include "armillary/kernel/cpu/micro.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr float kInf = __builtin_inff();

/// Keys [begin, end) that a group of query rows sees, and the vectors that hold them: in twos, of
/// which bf16 makes one. One of two may hold no such key, and is not computed then: it is whatever
/// was there, until HiddenKeys has set what no row sees.
struct Span {
  static constexpr int kStep = 2 * kWidth;
  int begin = 0;
  int end = 0;
  bool empty() const { return end <= begin; }
  int first() const { return empty() ? 0 : begin / kStep * kStep; }
  int last() const { return empty() ? 0 : (end + kStep - 1) / kStep * kStep; }
  /// Keys before last() that exist.
  int real(const TilePairs& pairs) const { return last() < pairs.k_rows ? last() : pairs.k_rows; }
  bool touches(int panel) const { return panel < end && panel + kPanel > begin; }
};

/// Where a product over the keys of a span begins, and over how many words it goes.
struct Words {
  int first = 0;
  int count = 0;
};
template <class Op>
ARMILLARY_INLINE Words words_of(const Span& span) {
  const int first = span.first() / Op::kTerms;
  return {first, (span.end + Op::kTerms - 1) / Op::kTerms - first};
}

/// One span for each group of `kRows` rows.
inline void find_spans(const TilePairs& pairs, Span* spans) {
  const int groups = (pairs.q_rows + kRows - 1) / kRows;
  for (int g = 0; g < groups; ++g) {
    spans[g] = pairs.ranges == nullptr ? Span{0, pairs.k_rows} : Span{pairs.k_rows, 0};
  }
  for (int i = 0; pairs.ranges != nullptr && i < pairs.range_count; ++i) {
    const RowRange& range = pairs.ranges[i];
    Span& span = spans[range.row / kRows];
    if (range.begin < span.begin) span.begin = range.begin;
    if (range.end > span.end) span.end = range.end;
  }
}

/// Walks the ranges of a tile row by row; rows must be asked for in ascending order.
class HiddenKeys {
 public:
  explicit HiddenKeys(const TilePairs& pairs)
      : pairs_(pairs), next_(pairs.ranges), end_(pairs.ranges + pairs.range_count) {}

  /// Sets what `row` does not see of [first, last) to `value`.
  ARMILLARY_INLINE void fill(int row, int first, int last, float value, float* x) {
    int seen = first;
    if (pairs_.ranges == nullptr) {
      seen = pairs_.k_rows;
    } else {
      for (; next_ != end_ && next_->row <= row; ++next_) {
        if (next_->row < row) continue;
        for (; seen < next_->begin; ++seen) x[seen] = value;
        seen = next_->end;
      }
    }
    for (; seen < last; ++seen) x[seen] = value;
  }

 private:
  const TilePairs& pairs_;
  const RowRange* next_;
  const RowRange* end_;
};

/// Calls visit(row, begin, end) for all keys [begin, end) that a row sees.
template <class Visit>
ARMILLARY_INLINE void for_each_range(const TilePairs& pairs, Visit visit) {
  for (int row = 0; pairs.ranges == nullptr && row < pairs.q_rows; ++row) {
    visit(row, 0, pairs.k_rows);
  }
  for (int i = 0; pairs.ranges != nullptr && i < pairs.range_count; ++i) {
    visit(pairs.ranges[i].row, pairs.ranges[i].begin, pairs.ranges[i].end);
  }
}

/// A in columns and B transposed, of so many elements a row; `scale` is for pairs only.
struct Factors {
  const float* a = nullptr;
  const float* b = nullptr;
  int elements = 0;
  float scale = 1;
};

/// products = scale A B^T of six rows from A's first, of `a_rows`, and `V` vectors of the panel of
/// B that begins with row `panel`: those from `first` on.
template <class Op, int V, int kLd>
ARMILLARY_INLINE void multiply_vectors(const Factors& factors, int a_rows, int panel, int first,
                                       float* products) {
  const int width = factors.elements / Op::kTerms;
  Block<V> c;
  clear<V>(c);
  multiply_columns<Op, V>(c, factors.a, a_rows,
                          factors.b + static_cast<std::ptrdiff_t>(panel) * width + first, width);
  if (Op::kTerms > 1 && factors.scale != 1) multiply_by<V>(c, factors.scale);
  put<V>(c, products + panel + first, kLd);
}

/// The same for what the span touches of a panel, in vectors.
template <class Op, int kLd>
ARMILLARY_INLINE void multiply_panel(const Factors& factors, int a_rows, int panel,
                                     const Span& span, float* products) {
  const int first = span.begin > panel ? (span.begin - panel) / kWidth * kWidth : 0;
  const int last = span.end < panel + kPanel ? span.end - panel : kPanel;
  with_vecs(last - first, [&](auto vecs) ARMILLARY_LAMBDA {
    multiply_vectors<Op, decltype(vecs)::kCount, kLd>(factors, a_rows, panel, first, products);
  });
}

/// products = scale A B^T for what the spans touch.
template <class Op, int kLd>
inline void multiply_panels(const TilePairs& pairs, const Span* spans, const Factors& factors,
                            float* products) {
  const int groups = (pairs.q_rows + kRows - 1) / kRows;
  for (int panel = 0; panel < pairs.k_rows; panel += kPanel) {
    for (int g = 0; g < groups; ++g) {
      if (!spans[g].touches(panel)) continue;
      Factors of_group = factors;
      of_group.a += g * kRows * kPanel;
      multiply_panel<Op, kLd>(of_group, groups * kRows, panel, spans[g],
                              products + g * kRows * kLd);
    }
  }
}

/// Softcap and slope of one query: scores x[0, count) of the keys from `first` on. `grad`, if not
/// null, gets d score / d (scale <q, k>).
inline void bend(const TileScore& score, int row, int first, int count, float* x, float* grad) {
  if (score.softcap != 0) {
    for (int i = 0; i < count; i += kWidth) {
      const Float y = tanh(load(x + i));
      if (grad != nullptr) store(grad + i, fnma(y, y, all(1.0f)));
      store(x + i, mul(y, all(score.softcap)));
    }
  }
  if (score.slope != 0) {
    const std::int64_t q = score.q_positions[row] + score.shift;
    for (int i = 0; i < count; ++i) {
      const std::int64_t distance = score.k_positions[first + i] - q;
      x[i] -= score.slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
