// forward_tile.h: softmax(Q K^T) V of a tile, merged into the state of its queries.
//
// Online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867): out and sum are relative to the
// largest score seen so far, and scaled anew only when that moves. A carry-in (out, lse) is a state
// of maximum lse and sum 1, so merging partials costs nothing.
#pragma once

#include "armillary/kernel/cpu/scores.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kForwardQ = kPanel > 16 ? 96 : 48;
constexpr int kForwardK = kPanel > 16 ? 512 : 256;
constexpr int kForwardLd = kForwardK + 16;  // rows of a power of two would share their cache sets
constexpr int kForwardGroups = kForwardQ / kRows;

/// x = exp(x - base) of N vectors, and their sums.
template <int N>
ARMILLARY_INLINE void weigh(float* x, Float base, Float* sums) {
  Float weights[N];
  for (int v = 0; v < N; ++v) weights[v] = sub(load(x + v * kWidth), base);
  exp(weights);
  for (int v = 0; v < N; ++v) store(x + v * kWidth, weights[v]);
  for (int v = 0; v < N; ++v) sums[v] = add(sums[v], weights[v]);
}

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

/// x = exp(x - base), whose sum is returned.
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

/// How scores become weights, for softmax: floats in place of floats.
struct FloatWeights {
  float scale = 1;  ///< What the scores lack.
  /// [first, last) of a row, whose sum is returned.
  ARMILLARY_INLINE float operator()(float* row, int first, int last, float base) const {
    return weigh_row(row + first, last - first, base);
  }
};

/// Row of the output *= factor.
ARMILLARY_INLINE void scale_row(const ForwardTile& t, int row, float factor) {
  const int padded = to_rows(t.pairs.q_rows);
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    float* const out = t.out + begin * padded + row * kPanel;
    for (int i = 0; i < kPanel; i += kWidth) store(out + i, mul(load(out + i), all(factor)));
  }
}

/// Takes `largest` into the maximum of a row, and scales its sum and output to the new one.
ARMILLARY_INLINE void raise_max(const ForwardTile& t, int row, float largest) {
  const float before = t.max[row];
  if (!(largest > before)) return;  // also if it is NaN: it stays
  t.max[row] = largest;
  if (before == -kInf) return;  // nothing there yet
  float lanes[kWidth];
  store(lanes, exp(all(before - largest)));
  const float correction = lanes[0];
  t.sum[row] *= correction;
  scale_row(t, row, correction);
}

ARMILLARY_INLINE void raise_max_logit(float& max_logit, float largest, float max, float sum) {
  // Only a score that is NaN, or an infinite one, makes the sum NaN.
  const bool nan = sum != sum && max == max && max != kInf;
  if (nan || largest > max_logit) max_logit = nan ? sum : largest;
}

/// Six query rows of a tile, which are attended one group after the other: their scores stay in the
/// first cache, K and V stream from the second.
struct Group {
  int begin = 0;  ///< rows [begin, end) of the tile
  int end = 0;
  Span span;
};

/// scores = scale Q K^T for what the group sees.
template <class Op>
ARMILLARY_INLINE void score_group(const ForwardTile& t, const Group& group, float scale) {
  const int padded = to_rows(t.pairs.q_rows);
  const Factors factors{t.q + group.begin * kPanel, t.k, t.head_dim, scale};
  const int first = group.span.begin / kPanel * kPanel;
  for (int panel = first; panel < group.span.end; panel += kPanel) {
    multiply_panel<Op, kForwardLd>(factors, padded, panel, group.span, t.scores);
  }
}

/// Scores become weights by `weigh`, and the state is made ready for them. One thing for all rows,
/// then the next: what a row waits for, another fills.
template <class Weigh>
ARMILLARY_INLINE void softmax(const ForwardTile& t, const Group& group, HiddenKeys& hidden,
                              const Weigh& weigh) {
  const int first = group.span.first();
  const int last = group.span.last();
  const int real = group.span.real(t.pairs) - first;
  float largest[kRows];
  for (int row = group.begin; row < group.end; ++row) {
    float* const scores = t.scores + (row - group.begin) * kForwardLd;
    if (!t.score.plain()) bend(t.score, row, first, real, scores + first, nullptr);
    hidden.fill(row, first, last, -kInf, scores);
    largest[row - group.begin] = weigh.scale * largest_of(scores + first, last - first);
  }
  for (int row = group.begin; row < group.end; ++row) raise_max(t, row, largest[row - group.begin]);
  for (int row = group.begin; row < group.end; ++row) {
    float* const scores = t.scores + (row - group.begin) * kForwardLd;
    // Without a key, here and before, the maximum is -inf, and so is every score.
    const float base = t.max[row] == -kInf ? 0 : t.max[row];
    const float sum = weigh(scores, first, last, base);
    t.sum[row] += sum;
    if (t.max_logit != nullptr) {
      raise_max_logit(*t.max_logit, largest[row - group.begin], t.max[row], sum);
    }
    if (t.score.dropout != nullptr) {
      float factors[kForwardK];
      fill_dropout(t.score, row, first, real, factors);
      for (int i = 0; i < real; ++i) scores[first + i] *= factors[i];
    }
  }
}

/// out += weights V without touching hidden pairs, where 0 * NaN would; the weights are floats.
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

/// out += weights V
template <class Op>
ARMILLARY_INLINE void add_values(const ForwardTile& t, const Group& group) {
  const int padded = to_rows(t.pairs.q_rows);
  const int v_words = to_panels(t.pairs.k_rows) / Op::kTerms;
  const Words words = words_of<Op>(group.span);
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    const float* const v = t.v + static_cast<std::ptrdiff_t>(begin) * v_words;
    float* const out = t.out + begin * padded + group.begin * kPanel;
    with_vecs(t.value_dim - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      Block<kCount> c;
      get<kCount>(c, out, kPanel);
      multiply_add<Op, kCount, kForwardLd, 1>(c, t.scores + words.first, v + words.first * kPanel,
                                              words.count);
      put<kCount>(c, out, kPanel);
    });
  }
}

/// Calls attend(group, hidden) for every group that sees a key.
template <class Attend>
ARMILLARY_INLINE void for_each_group(const ForwardTile& t, Attend attend) {
  Span spans[kForwardGroups];
  find_spans(t.pairs, spans);
  HiddenKeys hidden(t.pairs);
  for (int begin = 0; begin < t.pairs.q_rows; begin += kRows) {
    const int end = begin + kRows < t.pairs.q_rows ? begin + kRows : t.pairs.q_rows;
    const Group group{begin, end, spans[begin / kRows]};
    if (!group.span.empty()) attend(group, hidden);
  }
}

inline void forward(const ForwardTile& t) {
  for_each_group(t, [&](const Group& group, HiddenKeys& hidden) ARMILLARY_LAMBDA {
    score_group<Product>(t, group, 1);
    softmax(t, group, hidden, FloatWeights());
    if (t.pairs.wild) {
      add_exactly<Product>(t, group);
    } else {
      add_values<Product>(t, group);
    }
  });
}

/// Rows that saw no key are (0, -inf).
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
