// forward_tile.h: softmax(Q K^T) V of a tile, merged into the state of its queries.
//
// Online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867): out and sum are relative to the
// largest score seen so far, and scaled anew only when that moves. A carry-in (out, lse) is a state
// of maximum lse and sum 1, so merging partials costs nothing.
#pragma once

#include "armillary/kernel/cpu/scores.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kForwardQ = kPanel > 16 ? 96 : 48;
constexpr int kForwardK = 256;
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
  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    float* const out = t.out + begin * padded + row * kPanel;
    for (int i = 0; i < kPanel; i += kWidth) store(out + i, mul(load(out + i), all(correction)));
  }
}

ARMILLARY_INLINE void raise_max_logit(float& max_logit, float largest, float max, float sum) {
  // Only a score that is NaN, or an infinite one, makes the sum NaN.
  const bool nan = sum != sum && max == max && max != kInf;
  if (nan || largest > max_logit) max_logit = nan ? sum : largest;
}

/// Scores become weights, and the state is made ready for them. One thing for all rows, then the
/// next: what a row waits for, another fills.
inline void softmax(const ForwardTile& t, const Span* spans) {
  float largest[kForwardQ];
  HiddenKeys hidden(t.pairs);
  for (int row = 0; row < t.pairs.q_rows; ++row) {
    const Span& span = spans[row / kRows];
    const int first = span.first();
    float* const scores = t.scores + row * kForwardLd;
    if (!t.score.plain() && !span.empty())
      bend(t.score, row, first, span.real(t.pairs) - first, scores + first, nullptr);
    hidden.fill(row, first, span.last(), -kInf, scores);
    largest[row] = largest_of(scores + first, span.last() - first);
  }
  for (int row = 0; row < t.pairs.q_rows; ++row) raise_max(t, row, largest[row]);
  for (int row = 0; row < t.pairs.q_rows; ++row) {
    const Span& span = spans[row / kRows];
    if (span.empty()) continue;
    const int first = span.first();
    float* const scores = t.scores + row * kForwardLd + first;
    // Without a key, here and before, the maximum is -inf, and so is every score.
    const float base = t.max[row] == -kInf ? 0 : t.max[row];
    const float sum = weigh_row(scores, span.last() - first, base);
    t.sum[row] += sum;
    if (t.max_logit != nullptr) raise_max_logit(*t.max_logit, largest[row], t.max[row], sum);
    if (t.score.dropout != nullptr) {
      float factors[kForwardK];
      const int real = span.real(t.pairs) - first;
      fill_dropout(t.score, row, first, real, factors);
      for (int i = 0; i < real; ++i) scores[i] *= factors[i];
    }
  }
}

/// out += weights V without touching hidden pairs, where 0 * NaN would; the weights are floats.
template <class Op>
inline void add_exactly(const ForwardTile& t) {
  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  const int v_rows = (t.pairs.k_rows + kPanel - 1) / kPanel * kPanel;
  for_each_range(t.pairs, [&](int row, int begin, int end) {
    for (int e = 0; e < t.value_dim; ++e) {
      float* const x = t.out + in_columns(padded, row, e);
      for (int k = begin; k < end; ++k) {
        *x += t.scores[row * kForwardLd + k] * Op::at(t.v, v_rows, k, e);
      }
    }
  });
}

/// out += weights V
template <class Op>
inline void add_values(const ForwardTile& t, const Span* spans) {
  const int groups = (t.pairs.q_rows + kRows - 1) / kRows;
  const int v_words = (t.pairs.k_rows + kPanel - 1) / kPanel * kPanel / Op::kTerms;
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    const float* const v = t.v + static_cast<std::ptrdiff_t>(begin) * v_words;
    float* const out = t.out + begin * groups * kRows;
    with_vecs(t.value_dim - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      for (int g = 0; g < groups; ++g) {
        if (spans[g].empty()) continue;
        const Words words = words_of<Op>(spans[g]);
        float* const to = out + g * kRows * kPanel;
        Block<kCount> c;
        get<kCount>(c, to, kPanel);
        multiply_add<Op, kCount, kForwardLd, 1>(c, t.scores + g * kRows * kForwardLd + words.first,
                                                v + words.first * kPanel, words.count);
        put<kCount>(c, to, kPanel);
      }
    });
  }
}

inline void forward(const ForwardTile& t) {
  Span spans[kForwardGroups];
  find_spans(t.pairs, spans);
  multiply_panels<Product, kForwardLd>(t.pairs, spans, {t.q, t.k, t.head_dim}, t.scores);
  softmax(t, spans);
  if (t.pairs.wild) return add_exactly<Product>(t);
  add_values<Product>(t, spans);
}

inline void write(const ForwardTile& t, float* out, std::int64_t out_stride, float* lse,
                  std::int64_t lse_stride) {
  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  for (int row = 0; row < t.pairs.q_rows; ++row) {
    if (t.sum[row] == 0) continue;
    const float factor = 1 / t.sum[row];
    lse[row * lse_stride] = t.max[row] + __builtin_logf(t.sum[row]);
    for (int begin = 0; begin < t.value_dim; begin += kPanel) {
      const float* const from = t.out + begin * padded + row * kPanel;
      float* const to = out + row * out_stride + begin;
      const int columns = t.value_dim - begin < kPanel ? t.value_dim - begin : kPanel;
      int i = 0;
      for (; i + kWidth <= columns; i += kWidth) store(to + i, mul(load(from + i), all(factor)));
      for (; i < columns; ++i) to[i] = from[i] * factor;
    }
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
