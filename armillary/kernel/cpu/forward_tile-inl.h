// forward_tile-inl.h: softmax(Q K^T) V of a tile, merged into the state of its queries.
//
// Online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867): out and sum are relative to the
// largest score seen so far, and are rescaled only when that grows. A carry-in (out, lse) is the
// state with maximum lse and sum 1, so merging partial results costs nothing.
//
// Groups of six query rows are processed one after the other, each in three phases: scores of all
// keys (score_group), weights and state (softmax), out += weights V (add_values). The scores of a
// group stay in the first cache level; K and V stream from the second.
#pragma once

#include "armillary/kernel/cpu/scores-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Rows of a query row block and of a key row block. Rows of scores are kForwardLd floats apart: at
/// a distance of a power of two they would share cache sets.
constexpr int kForwardQ = kPanel > 16 ? 96 : 48;
constexpr int kForwardK = kPanel > 16 ? 512 : 256;
constexpr int kForwardLd = kForwardK + 16;
constexpr int kForwardGroups = kForwardQ / kRows;

/// x = exp(x - base) of N vectors, which are also added to `sums`.
template <int N>
ARMILLARY_INLINE void weigh(float* x, Float base, Float* sums) {
  Float weights[N];
  for (int v = 0; v < N; ++v) weights[v] = sub(load(x + v * kWidth), base);
  exp(weights);
  for (int v = 0; v < N; ++v) store(x + v * kWidth, weights[v]);
  for (int v = 0; v < N; ++v) sums[v] = add(sums[v], weights[v]);
}

/// The largest of `count` scores, a multiple of kWidth.
ARMILLARY_INLINE float largest_of(const float* x, int count) {
  Float tops[kAtOnce];
  for (Float& lane : tops) lane = all(-kInf);
  int i = 0;
  for (; i + kAtOnce * kWidth <= count; i += kAtOnce * kWidth) {
    for (int v = 0; v < kAtOnce; ++v) tops[v] = max(tops[v], load(x + i + v * kWidth));
  }
  for (; i < count; i += kWidth) tops[0] = max(tops[0], load(x + i));
  for (int v = 1; v < kAtOnce; ++v) tops[0] = max(tops[0], tops[v]);
  return top(tops[0]);
}

/// x = exp(x - base) of `count` scores; returns their sum.
ARMILLARY_INLINE float weigh_row(float* x, int count, float base) {
  Float sums[kAtOnce];
  for (Float& lane : sums) lane = all(0.0f);
  int i = 0;
  for (; i + kAtOnce * kWidth <= count; i += kAtOnce * kWidth) {
    weigh<kAtOnce>(x + i, all(base), sums);
  }
  for (; i < count; i += kWidth) weigh<1>(x + i, all(base), sums);
  for (int v = 1; v < kAtOnce; ++v) sums[0] = add(sums[0], sums[v]);
  return sum(sums[0]);
}

/// Makes weights of scores in place, as fp32. RoundedWeights (forward_bf16_dot-inl.h) has the same
/// interface.
struct FloatWeights {
  float scale = 1;  ///< factor that the scores still lack
  /// Weighs keys [first, last) of a row and returns the sum of the weights.
  ARMILLARY_INLINE float operator()(float* row, int first, int last, float base) const {
    return weigh_row(row + first, last - first, base);
  }
};

/// GemmOps::scale_row: `out` of one row *= factor.
ARMILLARY_INLINE void scale_row(const ForwardTile& t, int row, float factor) {
  const int padded = to_rows(t.pairs.q_rows);
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    float* const out = t.out + begin * padded + row * kPanel;
    for (int i = 0; i < kPanel; i += kWidth) store(out + i, mul(load(out + i), all(factor)));
  }
}

/// Raises the maximum of a row, and rescales its sum and output to the new one.
ARMILLARY_INLINE void raise_max(const ForwardTile& t, int row, float largest) {
  const float before = t.max[row];
  if (!(largest > before)) return;  // also if it is NaN: the maximum stays
  t.max[row] = largest;
  if (before == -kInf) return;  // nothing to rescale yet
  float lanes[kWidth];
  store(lanes, exp(all(before - largest)));
  const float correction = lanes[0];
  t.sum[row] *= correction;
  scale_row(t, row, correction);
}

/// Raises the largest logit. A NaN score, which `largest` does not show, is told by the sum: only a
/// NaN or an infinite score makes it NaN.
ARMILLARY_INLINE void raise_max_logit(float& max_logit, float largest, float max, float sum) {
  const bool nan = sum != sum && max == max && max != kInf;
  if (nan || largest > max_logit) max_logit = nan ? sum : largest;
}

struct Group {
  int begin = 0;  ///< rows [begin, end) of the tile
  int end = 0;
  KeySpan span;
};

template <class Op>
ARMILLARY_INLINE void score_group(const ForwardTile& t, const Group& group, float scale) {
  const int padded = to_rows(t.pairs.q_rows);
  const Factors factors{t.q + group.begin * kPanel, t.k, t.head_dim, scale};
  const int first = group.span.begin / kPanel * kPanel;
  for (int panel = first; panel < group.span.end; panel += kPanel) {
    multiply_panel<Op, kForwardLd>(factors, padded, panel, group.span, t.scores);
  }
}

/// Turns scores into weights by `weigh`, and updates maxima, sums and outputs. Each phase runs over
/// all six rows before the next begins, so that the latency of one row is hidden by the others.
template <class Weigh>
ARMILLARY_INLINE void softmax(const ForwardTile& t, const Group& group, HiddenKeys& hidden,
                              const Weigh& weigh) {
  const int first = group.span.first();
  const int last = group.span.last();
  const int real = group.span.real(t.pairs) - first;
  // Features of the score, hidden pairs, and the largest score of each row.
  float largest[kRows];
  for (int row = group.begin; row < group.end; ++row) {
    float* const scores = t.scores + (row - group.begin) * kForwardLd;
    if (!t.score.plain()) apply_softcap_alibi(t.score, {row, first, real}, scores + first, nullptr);
    hidden.fill(row, first, last, -kInf, scores);
    largest[row - group.begin] = weigh.scale * largest_of(scores + first, last - first);
  }
  // Maxima, before any weight is taken.
  for (int row = group.begin; row < group.end; ++row) raise_max(t, row, largest[row - group.begin]);
  for (int row = group.begin; row < group.end; ++row) {
    float* const scores = t.scores + (row - group.begin) * kForwardLd;
    // Weights. Without a key, here and before, the maximum is -inf, and so is every score.
    const float base = t.max[row] == -kInf ? 0 : t.max[row];
    const float sum = weigh(scores, first, last, base);
    t.sum[row] += sum;
    if (t.max_logit != nullptr) {
      raise_max_logit(*t.max_logit, largest[row - group.begin], t.max[row], sum);
    }
    if (t.score.dropout != nullptr) {
      float factors[kForwardK];
      fill_dropout(t.score, {row, first, real}, factors);
      for (int i = 0; i < real; ++i) scores[first + i] *= factors[i];
    }
  }
}

/// out += weights V over visible pairs only, since 0 * NaN of a hidden pair would be NaN. The
/// weights are fp32.
template <class Op>
inline void add_exactly(const ForwardTile& t, const Group& group) {
  const int padded = to_rows(t.pairs.q_rows);
  const int v_rows = to_panels(t.pairs.k_rows);
  for_each_range(t.pairs, [&](int row, int begin, int end) {
    if (row < group.begin || row >= group.end) return;
    const float* const weights = t.scores + (row - group.begin) * kForwardLd;
    for (int e = 0; e < t.value_dim; ++e) {
      float* const x = t.out + in_columns(padded, row, e);
      for (int k = begin; k < end; ++k) *x += weights[k] * Op::at(t.v, v_rows, k, e);
    }
  });
}

/// out += weights V, where the keys of a tile are added up by themselves first, for small errors.
template <class Op>
ARMILLARY_INLINE void add_values(const ForwardTile& t, const Group& group) {
  const int padded = to_rows(t.pairs.q_rows);
  const int v_words = to_panels(t.pairs.k_rows) / Op::kTerms;
  const KeyWords words = words_of<Op>(group.span);
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    const float* const v = t.v + static_cast<std::ptrdiff_t>(begin) * v_words;
    float* const out = t.out + begin * padded + group.begin * kPanel;
    with_vecs(t.value_dim - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      Accumulators<kCount> c;
      clear<kCount>(c);
      multiply_add<Op, kCount, kForwardLd, 1>(c, t.scores + words.first, v + words.first * kPanel,
                                              words.count);
      add_to<kCount>(c, out, kPanel);
    });
  }
}

/// Calls attend(group, hidden) for every group that sees a key.
template <class Attend>
ARMILLARY_INLINE void for_each_group(const ForwardTile& t, Attend attend) {
  KeySpan spans[kForwardGroups];
  find_spans(t.pairs, spans);
  HiddenKeys hidden(t.pairs);
  for (int begin = 0; begin < t.pairs.q_rows; begin += kRows) {
    const int end = begin + kRows < t.pairs.q_rows ? begin + kRows : t.pairs.q_rows;
    const Group group{begin, end, spans[begin / kRows]};
    if (!group.span.empty()) attend(group, hidden);
  }
}

/// GemmOps::forward for words of one term.
inline void forward(const ForwardTile& t) {
  for_each_group(t, [&](const Group& group, HiddenKeys& hidden) ARMILLARY_LAMBDA {
    score_group<Product>(t, group, 1);
    softmax(t, group, hidden, FloatWeights());
    if (t.pairs.nonfinite) {
      add_exactly<Product>(t, group);
    } else {
      add_values<Product>(t, group);
    }
  });
}

/// GemmOps::write: rows of E. A row that saw no key is (0, -inf).
template <class E>
inline void write_of(const ForwardTile& t, void* out, std::int64_t out_stride, float* lse,
                     std::int64_t lse_stride) {
  const int padded = to_rows(t.pairs.q_rows);
  for (int row = 0; row < t.pairs.q_rows; ++row) {
    const bool empty = t.sum[row] == 0;
    const float factor = empty ? 0 : 1 / t.sum[row];
    lse[row * lse_stride] = empty ? -kInf : t.max[row] + __builtin_logf(t.sum[row]);
    E* const to = static_cast<E*>(out) + row * out_stride;
    for (int begin = 0; begin < t.value_dim; begin += kPanel) {
      const float* const from = t.out + begin * padded + row * kPanel;
      const int columns = t.value_dim - begin < kPanel ? t.value_dim - begin : kPanel;
      store_all(to + begin, columns,
                [&](int i) ARMILLARY_LAMBDA { return mul(load(from + i), all(factor)); });
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
