// scores-inl.h: scores of a tile, as both passes need them: which pairs exist, the products S = Q
// K^T and dP = dO V^T, and the features of score.h.
//
// Rows are processed in groups of kRows (6). A group computes only the span of keys that at least
// one of its rows sees; hidden pairs within the span are overwritten afterwards (HiddenKeys).
#pragma once

#include "armillary/kernel/cpu/features.h"
#include "armillary/kernel/cpu/math-inl.h"
#include "armillary/kernel/cpu/micro-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr float kInf = __builtin_inff();

/// Keys [begin, end) that a group of query rows sees, and [first(), last()), the same rounded out
/// to pairs of vectors: one bf16 vector holds the values of two fp32 vectors. A rounded-out vector
/// that holds no such key is not computed: it has stale contents until HiddenKeys overwrites them.
struct KeySpan {
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

/// The words of a span, for a product over its keys.
struct KeyWords {
  int first = 0;
  int count = 0;
};
template <class Op>
ARMILLARY_INLINE KeyWords words_of(const KeySpan& span) {
  const int first = span.first() / Op::kTerms;
  return {first, (span.end + Op::kTerms - 1) / Op::kTerms - first};
}

/// Fills one span for each group of `kRows` rows.
inline void find_spans(const TilePairs& pairs, KeySpan* spans) {
  const int groups = (pairs.q_rows + kRows - 1) / kRows;
  for (int g = 0; g < groups; ++g) {
    spans[g] = pairs.ranges == nullptr ? KeySpan{0, pairs.k_rows} : KeySpan{pairs.k_rows, 0};
  }
  for (int i = 0; pairs.ranges != nullptr && i < pairs.range_count; ++i) {
    const RowRange& range = pairs.ranges[i];
    KeySpan& span = spans[range.row / kRows];
    if (range.begin < span.begin) span.begin = range.begin;
    if (range.end > span.end) span.end = range.end;
  }
}

/// Overwrites hidden pairs; rows must be given in ascending order.
class HiddenKeys {
 public:
  explicit HiddenKeys(const TilePairs& pairs)
      : pairs_(pairs), next_(pairs.ranges), end_(pairs.ranges + pairs.range_count) {}

  /// Sets the elements of [first, last) that `row` does not see to `value`.
  ARMILLARY_INLINE void fill(int row, int first, int last, float value, float* x) {
    int hidden = first;
    if (pairs_.ranges == nullptr) {
      hidden = pairs_.k_rows;
    } else {
      for (; next_ != end_ && next_->row <= row; ++next_) {
        if (next_->row < row) continue;
        for (; hidden < next_->begin; ++hidden) x[hidden] = value;
        hidden = next_->end;
      }
    }
    for (; hidden < last; ++hidden) x[hidden] = value;
  }

 private:
  const TilePairs& pairs_;
  const RowRange* next_;
  const RowRange* end_;
};

/// Calls visit(row, begin, end) for each visible range of keys.
template <class Visit>
ARMILLARY_INLINE void for_each_range(const TilePairs& pairs, Visit visit) {
  for (int row = 0; pairs.ranges == nullptr && row < pairs.q_rows; ++row) {
    visit(row, 0, pairs.k_rows);
  }
  for (int i = 0; pairs.ranges != nullptr && i < pairs.range_count; ++i) {
    visit(pairs.ranges[i].row, pairs.ranges[i].begin, pairs.ranges[i].end);
  }
}

/// Factors of a product over elements of rows: A in columns, B transposed. `elements` is D or E;
/// `scale` is applied to bf16 products only.
struct Factors {
  const float* a = nullptr;
  const float* b = nullptr;
  int elements = 0;
  float scale = 1;
};

/// products = scale A B^T for six rows of A and `V` vectors of B. The rows of A begin at factors.a,
/// in columns of `a_rows` rows. The vectors begin at key `first` of the panel that begins at key
/// `panel`. Rows of products are kLd floats apart.
template <class Op, int V, int kLd>
ARMILLARY_INLINE void multiply_vectors(const Factors& factors, int a_rows, int panel, int first,
                                       float* products) {
  const int width = factors.elements / Op::kTerms;
  Accumulators<V> c;
  clear<V>(c);
  multiply_columns<Op, V>(c, factors.a, a_rows,
                          factors.b + static_cast<std::ptrdiff_t>(panel) * width + first, width);
  if (Op::kTerms > 1 && factors.scale != 1) multiply_by<V>(c, factors.scale);
  put<V>(c, products + panel + first, kLd);
}

/// The same for the vectors of a panel that the span touches.
template <class Op, int kLd>
ARMILLARY_INLINE void multiply_panel(const Factors& factors, int a_rows, int panel,
                                     const KeySpan& span, float* products) {
  const int first = span.begin > panel ? (span.begin - panel) / kWidth * kWidth : 0;
  const int last = span.end < panel + kPanel ? span.end - panel : kPanel;
  with_vecs(last - first, [&](auto vecs) ARMILLARY_LAMBDA {
    multiply_vectors<Op, decltype(vecs)::kCount, kLd>(factors, a_rows, panel, first, products);
  });
}

/// products = scale A B^T for all groups and the panels that their spans touch.
template <class Op, int kLd>
inline void multiply_panels(const TilePairs& pairs, const KeySpan* spans, const Factors& factors,
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

/// Applies softcap and ALiBi slope to the scores x[0 .. keys.count). Softcap writes d score /
/// d (scale <q, k>) to `grad`, if not null; without softcap, where it is 1, nothing is written.
inline void apply_softcap_alibi(const TileScore& score, const RowKeys& keys, float* x,
                                float* grad) {
  const int count = keys.count;
  if (score.softcap != 0) {
    for (int i = 0; i < count; i += kWidth) {
      const Float y = tanh(load(x + i));
      if (grad != nullptr) store(grad + i, fnma(y, y, all(1.0f)));
      store(x + i, mul(y, all(score.softcap)));
    }
  }
  if (score.slope != 0) {
    const std::int64_t q = score.q_positions[keys.row] + score.shift;
    const int first = keys.first;
    for (int i = 0; i < count; ++i) {
      const std::int64_t distance = score.k_positions[first + i] - q;
      x[i] -= score.slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
