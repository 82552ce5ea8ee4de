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

/// weights = exp(scores - max) in place, where `max` and `sum` first take the scores in. Returns
/// what the sum and output of before must be multiplied with.
ARMILLARY_INLINE float softmax(float* scores, int count, float& max, float& sum, float* max_logit) {
  Float tops[2] = {all(-kInf), all(-kInf)};
  for (int i = 0; i < count; i += 2 * kWidth) {
    tops[0] = cpu::ARMILLARY_ISA::max(tops[0], load(scores + i));
    tops[1] = cpu::ARMILLARY_ISA::max(tops[1], load(scores + i + kWidth));
  }
  const float largest = top(cpu::ARMILLARY_ISA::max(tops[0], tops[1]));
  const float before = max;
  float correction = 1;
  if (largest > before) {  // not if NaN: it stays
    max = largest;
    if (before != -kInf) {
      float lanes[kWidth];
      store(lanes, exp(all(before - largest)));
      correction = lanes[0];
    }
  }
  const Float base = all(max == -kInf ? 0 : max);  // a row that sees no key here nor before
  Float sums[2] = {all(0.0f), all(0.0f)};
  for (int i = 0; i < count; i += 2 * kWidth) {
    for (int v = 0; v < 2; ++v) {
      const Float weight = exp(sub(load(scores + i + v * kWidth), base));
      store(scores + i + v * kWidth, weight);
      sums[v] = add(sums[v], weight);
    }
  }
  const float seen = cpu::ARMILLARY_ISA::sum(add(sums[0], sums[1]));
  sum = sum * correction + seen;
  if (max_logit != nullptr) {
    // Only a score that is NaN, or an infinite one, makes the sum NaN.
    const bool nan = seen != seen && max == max && max != kInf;
    if (nan || largest > *max_logit) *max_logit = nan ? seen : largest;
  }
  return correction;
}

/// out += weights V without touching hidden pairs, where 0 * NaN would.
inline void add_values_exactly(const ForwardTile& t) {
  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  const int v_rows = (t.pairs.k_rows + kPanel - 1) / kPanel * kPanel;
  const auto add_range = [&](int row, int begin, int end) {
    for (int e = 0; e < t.value_dim; ++e) {
      const int panel = e / kPanel;
      float* const x = t.out + (panel * padded + row) * kPanel + e % kPanel;
      for (int k = begin; k < end; ++k) {
        *x += t.scores[row * kForwardLd + k] * t.v[(panel * v_rows + k) * kPanel + e % kPanel];
      }
    }
  };
  if (t.pairs.ranges == nullptr) {
    for (int row = 0; row < t.pairs.q_rows; ++row) add_range(row, 0, t.pairs.k_rows);
  }
  for (int i = 0; t.pairs.ranges != nullptr && i < t.pairs.range_count; ++i) {
    add_range(t.pairs.ranges[i].row, t.pairs.ranges[i].begin, t.pairs.ranges[i].end);
  }
}

/// out += weights V
inline void add_values(const ForwardTile& t, const Span* spans) {
  const int groups = (t.pairs.q_rows + kRows - 1) / kRows;
  const int v_rows = (t.pairs.k_rows + kPanel - 1) / kPanel * kPanel;
  for (int begin = 0; begin < t.value_dim; begin += kPanel) {
    const float* const v = t.v + static_cast<std::ptrdiff_t>(begin) * v_rows;
    float* const out = t.out + begin * groups * kRows;
    with_vecs(t.value_dim - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      for (int g = 0; g < groups; ++g) {
        if (spans[g].empty()) continue;
        const int first = spans[g].first();
        float* const to = out + g * kRows * kPanel;
        Block<kCount> c;
        get<kCount>(c, to, kPanel);
        multiply_add<kCount, kForwardLd, 1>(c, t.scores + g * kRows * kForwardLd + first,
                                            v + first * kPanel, spans[g].end - first);
        put<kCount>(c, to, kPanel);
      }
    });
  }
}

inline void forward(const ForwardTile& t) {
  Span spans[kForwardGroups];
  find_spans(t.pairs, spans);
  multiply_panels<kForwardLd>(t.pairs, spans, t.q, t.k, t.head_dim, t.scores);

  const int padded = (t.pairs.q_rows + kRows - 1) / kRows * kRows;
  HiddenKeys hidden(t.pairs);
  for (int row = 0; row < t.pairs.q_rows; ++row) {
    const Span& span = spans[row / kRows];
    if (span.empty()) continue;
    float* const scores = t.scores + row * kForwardLd;
    const int first = span.first();
    const int count = span.last() - first;
    if (!t.score.plain()) {
      const int real = (span.last() < t.pairs.k_rows ? span.last() : t.pairs.k_rows) - first;
      bend(t.score, row, first, real, scores + first, nullptr);
    }
    hidden.fill(row, first, span.last(), -kInf, scores);
    const float correction = softmax(scores + first, count, t.max[row], t.sum[row], t.max_logit);
    if (correction != 1) {
      for (int begin = 0; begin < t.value_dim; begin += kPanel) {
        float* const out = t.out + begin * padded + row * kPanel;
        for (int i = 0; i < kPanel; i += kWidth) {
          store(out + i, mul(load(out + i), all(correction)));
        }
      }
    }
    if (t.score.dropout != nullptr) {
      float factors[kForwardK];
      const int real = (span.last() < t.pairs.k_rows ? span.last() : t.pairs.k_rows) - first;
      fill_dropout(t.score, row, first, real, factors);
      for (int i = 0; i < real; ++i) scores[first + i] *= factors[i];
    }
  }
  if (t.pairs.wild) {
    add_values_exactly(t);
  } else {
    add_values(t, spans);
  }
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
