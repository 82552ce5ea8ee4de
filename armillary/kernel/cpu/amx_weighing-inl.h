// amx_weighing-inl.h: how scores of a chunk become weights, and when maxima move.
//
// The vector work of softmax is spread over the products of the tile unit: Weighing does a share of
// it after each product, at the pace that finishes both together.
#pragma once

#include "armillary/kernel/cpu/amx_scores-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Portions of weighing in a chunk: two rows of 16 queries each.
constexpr int kChunkUnits = kDoubleSide;

/// 2^x of `N` vectors, also for 0 and for what overflows: within 2^-18.5 for weights of one part,
/// which are rounded to bf16 (2^-9) at once, otherwise within 1.1 ulp.
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

/// GemmOps::log_unit. Maxima of bf16 are in units of log 2, which saves one multiplication for each
/// weight; those of floats are in the unit of scores, so that no rounding is added.
constexpr float log_unit(int parts) {
  return parts == 1 ? kLn2 : 1;
}

/// The maximum, or 0 where there is no score.
inline Float finite_or_0(Float max) {
  return if_less(max, all(kNoScore), all(0.0f), max);
}

/// Applies the scale to the scores beforehand if a maximum is large: scores are then rounded as the
/// maximum was before their difference is taken. Elsewhere the scale is part of the fma that takes
/// the difference, which is faster.
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

/// Raises the maxima of 32 queries to their largest scores where that matters, and rescales sums.
/// Returns whether one of `factors`, by which other accumulators must be multiplied, is not 1.
template <int kParts>
bool raise_maxima(const float* tops, float scale, float* max, float* sums, float* factors) {
  constexpr float kShare = 64;    // above: a weight of less than a 64th of the sum may exceed 1
  constexpr float kLargest = 20;  // units of log 2: a weight above that moves any maximum
  bool moved = false;
  for (int half = 0; half < kDoubleSide; half += kSide) {
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

/// Weights of scores from which their maximum is subtracted.
template <int kParts, int N>
ARMILLARY_INLINE void weigh_differences(Float (&x)[N]) {
  if constexpr (kParts > 1) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) x[i] = mul(x[i], all(kLog2E));
  }
  power_of_two<kParts>(x);
}

constexpr int kWeightFloats = 2 * kTileFloats;  ///< one part of P of a chunk

/// Stores a row of words of P, in its parts.
template <int kParts>
ARMILLARY_INLINE void store_weights_of(float* to, Float even, Float odd) {
  if constexpr (kParts == 1) {
    store_weights(to, even, odd);
  } else {
    store_word_parts<kParts>(to, kWeightFloats, even, odd);
  }
}

/// Weighs the scores of a chunk, one portion after the other: P^T as words, in parts, and the sums
/// of columns. step() is called beside products, over which the work is spread evenly.
template <int kParts>
class Weighing {
 public:
  Weighing(const float* scores, float* words, float scale)
      : scores_(scores), words_(words), scale_(all(scale)) {}

  /// Maxima and sums of 32 queries: `max` is finite where a score is; sums are added to. The last
  /// parameter is the number of products beside which the chunk is weighed; 0 if there are none.
  ARMILLARY_INLINE void begin(const float* max, float* sums, int products) {
    max_ = max;
    sums_ = sums;
    if (products != 0) pace_ = (left_ * kUnit + products - 1) / products;
  }
  /// Called after a product: weighs as many portions as are due.
  ARMILLARY_INLINE void step() {
    for (credit_ += pace_; credit_ >= kUnit && left_ != 0; credit_ -= kUnit) weigh_two_rows();
  }
  ARMILLARY_INLINE void finish() {
    while (left_ != 0) weigh_two_rows();
  }

 private:
  static constexpr int kUnit = 256;

  /// One portion: two rows of 16 queries.
  ARMILLARY_INLINE void weigh_two_rows() {
    if (left_ % kSide == 0) {  // 16 portions for the first 16 queries, then 16 for the others
      half_ = left_ == kChunkUnits ? 0 : kSide;
      const Float max = load(max_ + half_);
      minus_base_ = if_less(max, all(kNoScore), all(0.0f), sub(all(0.0f), max));
      even_ = all(0.0f);  // summed apart: the sum so far is much larger than one weight
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
  /// Moves from the first 16 keys of 16 queries to the next, and then to the other queries.
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
  int pace_ = kUnit;  ///< portions a product, in units of 1 / kUnit
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
