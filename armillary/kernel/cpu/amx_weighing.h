// amx_weighing.h: how scores of a chunk become weights, and when maxima move.
#pragma once

#include "armillary/kernel/cpu/amx_scores.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

constexpr int kChunkUnits = kPair;  ///< Pairs of rows of 16 queries of a chunk.

/// 2^x of `N` vectors, also of 0 and of what overflows, for weights that are multiplied in `kParts`
/// parts: within 2^-18.5 where they are rounded to bf16 (2^-9) at once, else within 1.1 ulp.
template <int kParts, int N>
ARMILLARY_INLINE void power_of_two(Float (&x)[N]) {
  constexpr int kDegree = kParts == 1 ? 4 : 6;
  constexpr float kCoefficients[2][7] = {
      {0x1.00002cp+0f, 0x1.62d166p-1f, 0x1.ee798ap-3f, 0x1.aa13f2p-5f, 0x1.bb7cdap-7f, 0, 0},
      {1, 0x1.62e42ap-1f, 0x1.ebfd9ep-3f, 0x1.c68500p-5f, 0x1.3d2800p-7f, 0x1.461954p-10f,
       0x1.c72118p-13f}};
  const float(&c)[7] = kCoefficients[kParts == 1 ? 0 : 1];
  Float r[N];
  Float p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) r[i] = fraction(x[i]);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    p[i] = all(c[kDegree]);
#pragma GCC unroll 8
    for (int k = kDegree - 1; k >= 0; --k) p[i] = fma(p[i], r[i], all(c[k]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = times_power(p[i], x[i]);
}

/// What maxima times it are in the unit of log-sum-exps: those of bf16 are in units of log 2, which
/// saves a multiplication for each weight; those of floats lose nothing by another rounding.
constexpr float log_unit(int parts) {
  return parts == 1 ? kLn2 : 1;
}

inline Float finite_or_0(Float max) {
  return if_less(max, all(kNoScore), all(0.0f), max);
}

/// Scores become products with their scale where a maximum is large: a product is rounded then
/// before the difference is taken, as the maximum was. Elsewhere that is not worth its time.
inline void scale_if_large(float* x, int chunks, const float* max, float& scale) {
  constexpr float kLarge = 0x1p10f;
  if (!any_above(abs(finite_or_0(load(max))), kLarge) &&
      !any_above(abs(finite_or_0(load(max + kSide))), kLarge)) {
    return;
  }
  for (int i = 0; i < chunks * kChunkFloats; i += kWidth)
    store(x + i, mul(load(x + i), all(scale)));
  scale = 1;
}

/// Maxima of 32 queries move to their largest scores where that matters, and sums with them.
/// Returns whether one of `factors`, for what else was summed, is not 1.
template <int kParts>
bool raise_maxima(const float* tops, float scale, float* max, float* sums, float* factors) {
  constexpr float kShare = 64;    // a weight of less than a 64th of the sum may be above 1
  constexpr float kLargest = 20;  // in units of log 2: then any weight moves the maximum
  bool moved = false;
  for (int half = 0; half < kPair; half += kSide) {
    const Float before = load(max + half);
    const Float sum = load(sums + half);
    const Float top = mul(load(tops + half), all(scale));
    const Float above = mul(sub(top, before), all(log_unit(kParts) * kLog2E));
    Float weight[1] = {above};
    power_of_two<kParts>(weight);
    Float raised = if_less(sum, mul(weight[0], all(kShare)), top, before);
    raised = if_less(all(kLargest), above, top, raised);
    raised = if_less(before, raised, raised, before);
    // Nothing is summed where there was no maximum.
    const Float by = if_less(before, all(kNoScore), all(0.0f), sub(before, raised));
    const Float factor = exp(mul(by, all(log_unit(kParts))));
    store(max + half, raised);
    store(sums + half, mul(sum, factor));
    store(factors + half, factor);
    moved |= any_above(sub(all(1.0f), factor), 0);
  }
  return moved;
}

/// Weights of scores less their maximum.
template <int kParts, int N>
ARMILLARY_INLINE void weigh_differences(Float (&x)[N]) {
  if constexpr (kParts > 1) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) x[i] = mul(x[i], all(kLog2E));
  }
  power_of_two<kParts>(x);
}

constexpr int kWeightFloats = 2 * kTileFloats;  ///< A part of P of a chunk.

/// A row of words of P, in its parts.
template <int kParts>
ARMILLARY_INLINE void store_weights_of(float* to, Float even, Float odd) {
  if constexpr (kParts == 1) {
    store_weights(to, even, odd);
  } else {
    store_word_parts<kParts>(to, kWeightFloats, even, odd);
  }
}

/// Weighs the scores of a chunk one pair of rows of 16 queries after the other: P^T as words, in
/// parts, and the sums of columns. Done beside products, over which it is spread.
template <int kParts>
class Weighing {
 public:
  Weighing(const float* scores, float* words, float scale)
      : scores_(scores), words_(words), scale_(all(scale)) {}

  /// `max` is finite where a score is; sums are added to. 32 queries.
  ARMILLARY_INLINE void begin(const float* max, float* sums, int products) {
    max_ = max;
    sums_ = sums;
    if (products != 0) pace_ = (left_ * kUnit + products - 1) / products;
  }
  ARMILLARY_INLINE void step() {
    for (credit_ += pace_; credit_ >= kUnit && left_ != 0; credit_ -= kUnit) weigh_pair();
  }
  ARMILLARY_INLINE void finish() {
    while (left_ != 0) weigh_pair();
  }

 private:
  static constexpr int kUnit = 256;

  ARMILLARY_INLINE void weigh_pair() {
    if (left_ % kSide == 0) {  // 16 pairs of rows for the first 16 queries, then for the others
      half_ = left_ == kChunkUnits ? 0 : kSide;
      const Float max = load(max_ + half_);
      minus_base_ = if_less(max, all(kNoScore), all(0.0f), sub(all(0.0f), max));
      even_ = all(0.0f);  // what came before is much larger than a weight
      odd_ = all(0.0f);
    }
    Float x[2] = {fma(load(scores_), scale_, minus_base_),
                  fma(load(scores_ + kWidth), scale_, minus_base_)};
    weigh_differences<kParts>(x);
    even_ = add(even_, x[0]);
    odd_ = add(odd_, x[1]);
    store_weights_of<kParts>(words_, x[0], x[1]);
    scores_ += 2 * kWidth;
    words_ += kWidth;
    --left_;
    if (left_ % (kSide / 2) == 0) next_tile();
  }
  /// From the first 16 keys of 16 queries to the next, and then to the other queries.
  ARMILLARY_INLINE void next_tile() {
    if (left_ % kSide != 0) {
      scores_ += kTileFloats;
      return;
    }
    scores_ -= 2 * kTileFloats;
    store(sums_ + half_, add(load(sums_ + half_), add(even_, odd_)));
  }

  const float* scores_;
  float* words_;
  int left_ = kChunkUnits;
  int pace_ = kUnit;  ///< Pairs of rows a product, in parts of kUnit.
  int credit_ = 0;
  int half_ = 0;
  const float* max_ = nullptr;
  float* sums_ = nullptr;
  Float scale_;
  Float minus_base_ = all(0.0f);
  Float even_ = all(0.0f);
  Float odd_ = all(0.0f);
};

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
