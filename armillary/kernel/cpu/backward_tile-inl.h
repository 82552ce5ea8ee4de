// backward_tile-inl.h: the gradient of a tile (Dao et al. 2022, arXiv:2205.14135, algorithm 4).
//
//   P  = exp(S - lse)              dV += P^T dO
//   dS = P (dO V^T - delta)        dK += dS^T Q        dQ += scale dS K
//
// Phases of backward(): S and dP of the whole tile, P and dS in place of them (find_weights), then
// dV and dK (add_transposed). dk and dv are private to the caller; dq is added by a call of its
// own, backward_dq(), so that the driver can order the tiles that add to the same rows.
#pragma once

#include "armillary/kernel/cpu/scores-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Rows of a query and of a key row block. There are more keys than queries, since what is packed
/// and accumulated for the keys is reused by every query row block. CPUs with AVX-512 have a second
/// cache level of 1 MiB and more, others may have a quarter of that.
constexpr int kBackwardQ = kPanel > 16 ? 96 : 48;
constexpr int kBackwardK = kPanel > 16 ? 384 : 192;
constexpr int kBackwardLd = kBackwardK + 16;
constexpr int kBackwardGroups = (kBackwardQ + kRows - 1) / kRows;

/// Query groups [begin, end) that have visible pairs with some keys.
struct Groups {
  int begin = 0;
  int end = 0;
};

/// Groups whose spans touch keys [first_key, last_key).
inline Groups groups_of(const TilePairs& pairs, const KeySpan* spans, int first_key, int last_key) {
  const int groups = (pairs.q_rows + kRows - 1) / kRows;
  Groups visible{groups, 0};
  for (int g = 0; g < groups; ++g) {
    if (spans[g].begin >= last_key || spans[g].end <= first_key) continue;
    if (g < visible.begin) visible.begin = g;
    visible.end = g + 1;
  }
  return visible;
}

/// Factors and accumulators of a sum over query rows: sums += weights^T X; sums and X in columns of
/// `width` elements.
struct RowSums {
  const float* weights = nullptr;
  const float* x = nullptr;
  int width = 0;
  float* sums = nullptr;
};
/// Adds up such a sum over the groups that see each six keys. A word that holds several rows is
/// found in the first of them. The rows of a tile are added up by themselves first: the error of a
/// long sum that takes every row grows with the length of the sequence.
template <class Op>
inline void add_transposed(const TilePairs& pairs, const KeySpan* spans, const RowSums& of) {
  const float* const weights = of.weights;
  const float* x = of.x;
  const int width = of.width;
  float* sums = of.sums;
  const int q_rows = to_rows(pairs.q_rows);
  const int k_rows = to_rows(pairs.k_rows);
  for (int begin = 0; begin < width; begin += kPanel, x += q_rows / Op::kTerms * kPanel) {
    with_vecs(width - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      for (int k = 0; k < k_rows; k += kRows, sums += kRows * kPanel) {
        const Groups groups = groups_of(pairs, spans, k, k + kRows);
        if (groups.end <= groups.begin) continue;
        const int row = groups.begin * kRows;
        Accumulators<kCount> c;
        clear<kCount>(c);
        multiply_add<Op, kCount, 1, Op::kTerms * kBackwardLd>(
            c, weights + row * kBackwardLd + k, x + row / Op::kTerms * kPanel,
            (groups.end * kRows - row) / Op::kTerms);
        add_to<kCount>(c, sums, kPanel);
      }
    });
  }
}

/// p = exp(p - lse) and ds = p (ds - delta) of N vectors.
template <int N>
ARMILLARY_INLINE void weigh_plain(float* p, float* ds, Float lse, Float delta) {
  Float weights[N];
  for (int v = 0; v < N; ++v) weights[v] = sub(load(p + v * kWidth), lse);
  exp_any(weights);
  for (int v = 0; v < N; ++v) store(p + v * kWidth, weights[v]);
  for (int v = 0; v < N; ++v) {
    store(ds + v * kWidth, mul(weights[v], sub(load(ds + v * kWidth), delta)));
  }
}

/// Rows of P and dS from those of S and dP: `count` keys from `first` on, of which `real` exist.
inline void weigh_row(const BackwardTile& t, int row, int first, int count, int real) {
  float* const p = t.weights + row * kBackwardLd + first;
  float* const ds = t.dscores + row * kBackwardLd + first;
  const Float lse = all(t.lse[row]);
  const Float delta = all(t.delta[row]);
  if (t.score.plain() || row >= t.pairs.q_rows) {
    int i = 0;
    for (; i + kAtOnce * kWidth <= count; i += kAtOnce * kWidth) {
      weigh_plain<kAtOnce>(p + i, ds + i, lse, delta);
    }
    for (; i < count; i += kWidth) weigh_plain<1>(p + i, ds + i, lse, delta);
    return;
  }
  // Features of the score: P gets dropout factors, dS also the derivative of the score.
  float derivatives[kBackwardK];
  float factors[kBackwardK];
  for (int i = 0; i < count; ++i) derivatives[i] = factors[i] = 1;
  apply_softcap_alibi(t.score, {row, first, real}, p, derivatives);
  if (t.score.dropout != nullptr) fill_dropout(t.score, {row, first, real}, factors);
  for (int i = 0; i < count; i += kWidth) {
    Float weight[1] = {sub(load(p + i), lse)};
    exp_any(weight);
    const Float factor = load(factors + i);
    const Float slope = mul(weight[0], sub(mul(load(ds + i), factor), delta));
    store(p + i, mul(weight[0], factor));
    store(ds + i, mul(slope, load(derivatives + i)));
  }
}

/// P and dS of the tile. Pairs that are hidden, in padding or not computed become 0.
inline void weigh(const BackwardTile& t, const KeySpan* spans) {
  const int padded = to_rows(t.pairs.q_rows);
  const int width = to_panels(t.pairs.k_rows);
  HiddenKeys hidden_weights(t.pairs);
  HiddenKeys hidden_dscores(t.pairs);
  for (int row = 0; row < padded; ++row) {
    const KeySpan& span = spans[row / kRows];
    float* const p = t.weights + row * kBackwardLd;
    float* const ds = t.dscores + row * kBackwardLd;
    const int first = span.empty() ? width : span.first();
    const int last = span.empty() ? width : span.last();
    const int real = last < t.pairs.k_rows ? last : t.pairs.k_rows;
    if (!span.empty()) weigh_row(t, row, first, last - first, real - first);
    for (int i = 0; i < first; ++i) p[i] = ds[i] = 0;
    for (int i = last; i < width; ++i) p[i] = ds[i] = 0;
    hidden_weights.fill(row, first, last, 0, p);
    hidden_dscores.fill(row, first, last, 0, ds);
  }
}

/// Calls visit(row, key) for every visible pair of a tile.
template <class Visit>
ARMILLARY_INLINE void for_each_pair(const TilePairs& pairs, Visit visit) {
  for_each_range(pairs, [&](int row, int begin, int end) {
    for (int k = begin; k < end; ++k) visit(row, k);
  });
}

/// P and dS of the tile, as fp32.
template <class Op>
inline void find_weights(const BackwardTile& t, const KeySpan* spans) {
  multiply_panels<Op, kBackwardLd>(t.pairs, spans, {t.q, t.k_transposed, t.head_dim, t.score_scale},
                                   t.weights);
  multiply_panels<Op, kBackwardLd>(t.pairs, spans, {t.dout, t.v_transposed, t.value_dim},
                                   t.dscores);
  weigh(t, spans);
}

/// dv and dk over visible pairs only, since 0 * NaN of a hidden pair would be NaN. P and dS are
/// fp32.
template <class Op>
inline void add_exactly(const BackwardTile& t) {
  const int q_rows = to_rows(t.pairs.q_rows);
  const int k_rows = to_rows(t.pairs.k_rows);
  for_each_pair(t.pairs, [&](int row, int k) {
    const int at = row * kBackwardLd + k;
    for (int e = 0; e < t.value_dim; ++e) {
      t.dv[in_columns(k_rows, k, e)] += t.weights[at] * Op::at(t.dout_values, q_rows, row, e);
    }
    for (int d = 0; d < t.head_dim; ++d) {
      t.dk[in_columns(k_rows, k, d)] += t.dscores[at] * Op::at(t.q_values, q_rows, row, d);
    }
  });
}

/// GemmOps::backward for words of one term.
inline void backward(const BackwardTile& t) {
  KeySpan spans[kBackwardGroups];
  find_spans(t.pairs, spans);
  find_weights<Product>(t, spans);
  if (t.pairs.nonfinite) return add_exactly<Product>(t);
  add_transposed<Product>(t.pairs, spans, {t.weights, t.dout_values, t.value_dim, t.dv});
  add_transposed<Product>(t.pairs, spans, {t.dscores, t.q_values, t.head_dim, t.dk});
}

/// Rows of a gradient, of which `rows` and `columns` exist.
struct GradRows {
  float* data = nullptr;
  std::int64_t stride = 0;
  int rows = 0;
  int columns = 0;
};
/// grad += scale * c
template <int V>
ARMILLARY_INLINE void add_rows(const Accumulators<V>& c, float scale, GradRows grad) {
  if (grad.rows == kRows && grad.columns >= V * kWidth) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        float* const x = grad.data + r * grad.stride + v * kWidth;
        store(x, fma(c[r][v], all(scale), load(x)));
      }
    }
    return;
  }
  // At the edges of the gradient: element by element.
  float part[kRows * kPanel];
  put<V>(c, part, kPanel);
  const int columns = grad.columns > V * kWidth ? V * kWidth : grad.columns;
  for (int r = 0; r < grad.rows; ++r) {
    for (int i = 0; i < columns; ++i) {
      grad.data[r * grad.stride + i] += scale * part[r * kPanel + i];
    }
  }
}

/// GemmOps::backward_dq: dq += scale dS K, by groups of six query rows and panels of D.
template <class Op>
inline void backward_dq(const BackwardTile& t) {
  const int k_rows = to_panels(t.pairs.k_rows);
  if (t.pairs.nonfinite) {
    for_each_pair(t.pairs, [&](int row, int k) {
      const float ds = t.scale * t.dscores[row * kBackwardLd + k];
      for (int d = 0; d < t.head_dim; ++d) {
        t.dq[row * t.dq_stride + d] += ds * Op::at(t.k_values, k_rows, k, d);
      }
    });
    return;
  }
  KeySpan spans[kBackwardGroups];
  find_spans(t.pairs, spans);
  for (int begin = 0; begin < t.head_dim; begin += kPanel) {
    const float* const k = t.k_values + static_cast<std::ptrdiff_t>(begin) * k_rows / Op::kTerms;
    with_vecs(t.head_dim - begin, [&](auto vecs) ARMILLARY_LAMBDA {
      constexpr int kCount = decltype(vecs)::kCount;
      for (int row = 0; row < t.pairs.q_rows; row += kRows) {
        const KeySpan& span = spans[row / kRows];
        if (span.empty()) continue;
        const int rows = t.pairs.q_rows - row < kRows ? t.pairs.q_rows - row : kRows;
        Accumulators<kCount> c;
        clear<kCount>(c);
        const KeyWords words = words_of<Op>(span);
        multiply_add<Op, kCount, kBackwardLd, 1>(c, t.dscores + row * kBackwardLd + words.first,
                                                 k + words.first * kPanel, words.count);
        add_rows<kCount>(c, t.scale,
                         {t.dq + row * t.dq_stride + begin, t.dq_stride, rows, t.head_dim - begin});
      }
    });
  }
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
