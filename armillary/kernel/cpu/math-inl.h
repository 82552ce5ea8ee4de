// math-inl.h: exp, 2^x, log1p and tanh of vectors. exp and 2^x reduce x to an integer power of two
// and a rest, and take a polynomial of the rest, for several vectors side by side.
#pragma once

#include "armillary/kernel/cpu/simd-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Vectors of exp side by side: enough of them hide the latency of a polynomial.
constexpr int kAtOnce = kVecs == 4 ? 4 : 3;

#define ARMILLARY_EACH _Pragma("GCC unroll 8") for (int i = 0; i < N; ++i)

/// Reduction of `N` vectors: take() finds the integers n nearest x unit, give() multiplies by 2^n.
/// x is raised to where 2^n is 0, so that the polynomial of the rest is finite.
template <int N>
struct Powers {
#if defined(ARMILLARY_SCALES)
  ARMILLARY_INLINE void take(Float (&x)[N], float unit) {
    ARMILLARY_EACH x[i] = max(all(-160 / unit), x[i]);
    ARMILLARY_EACH n[i] = nearest(mul(x[i], all(unit)));
  }
  /// x = p 2^n
  ARMILLARY_INLINE void give(const Float (&p)[N], Float (&x)[N]) const {
    ARMILLARY_EACH x[i] = scale_by_power(p[i], n[i]);
  }
#else
  static constexpr float kMagic =
      0x1.8p23f + 127;  // z = x unit + kMagic: its last 8 bits are n + 127
  ARMILLARY_INLINE void take(Float (&x)[N], float unit) {
    ARMILLARY_EACH x[i] = max(all(-127 / unit), x[i]);  // exponent(2^-127) is 0
    ARMILLARY_EACH z[i] = fma(x[i], all(unit), all(kMagic));
    ARMILLARY_EACH n[i] = sub(z[i], all(kMagic));
  }
  ARMILLARY_INLINE void give(const Float (&p)[N], Float (&x)[N]) const {
    ARMILLARY_EACH x[i] = mul(p[i], exponent(z[i]));
  }
  Float z[N];
#endif
  Float n[N];
};

/// exp(x) within 2 ulp where the result is normal; below that it is subnormal or 0, and exp(-inf)
/// is 0. NaN stays NaN. Requires x <= 88, which softmax guarantees; `exp_any` takes any x.
///
///   n = round(x / ln 2),  r = x - n ln 2 in two parts,  exp(x) = 2^n p(r)
///
/// p has degree 5 and p(0) = 1, and the least error of all steps once its coefficients are rounded.
/// Sets whose fma rounds twice use degree 6 to make up for it.
template <int N>
ARMILLARY_INLINE void exp(Float (&x)[N]) {
  Float p[N];
  Powers<N> powers;
  powers.take(x, 1.44269504f);
  ARMILLARY_EACH x[i] = fnma(powers.n[i], all(0x1.62e4p-1f), x[i]);
  ARMILLARY_EACH x[i] = fnma(powers.n[i], all(0x1.7f7d1cp-20f), x[i]);  // r
  if constexpr (kFused) {
    ARMILLARY_EACH p[i] = fma(x[i], all(0x1.0fc93ap-7f), all(0x1.5739d6p-5f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.555a44p-3f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.fffdc8p-2f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.fffff6p-1f));
  } else {
    ARMILLARY_EACH p[i] = fma(x[i], all(0x1.6a23d0p-10f), all(0x1.123a20p-7f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.5558f2p-5f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.555492p-3f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.fffffcp-2f));
    ARMILLARY_EACH p[i] = fma(p[i], x[i], all(1.0f));
  }
  ARMILLARY_EACH p[i] = fma(p[i], x[i], all(1.0f));
  powers.give(p, x);
}

/// exp(x) for any x: inf above 88.7.
template <int N>
ARMILLARY_INLINE void exp_any(Float (&x)[N]) {
  ARMILLARY_EACH x[i] = min(all(89.0f), x[i]);  // n = 128, whose exponent is that of inf
  exp(x);
}

/// 2^x within 2^-18, for results that are rounded to bf16 (2^-9) at once; otherwise as exp. 2^0 has
/// that error too.
template <int N>
ARMILLARY_INLINE void exp2_to_round(Float (&x)[N]) {
  Float p[N];
  Powers<N> powers;
  powers.take(x, 1);
  ARMILLARY_EACH x[i] = sub(x[i], powers.n[i]);
  // The polynomial of degree 4 with the least relative error for |x| <= 1/2.
  ARMILLARY_EACH p[i] = fma(x[i], all(0x1.3997d6p-7f), all(0x1.ca1440p-5f));
  ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.ec06dap-3f));
  ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.62e0dcp-1f));
  ARMILLARY_EACH p[i] = fma(p[i], x[i], all(0x1.ffffe8p-1f));
  powers.give(p, x);
}

#undef ARMILLARY_EACH

ARMILLARY_INLINE Float exp(Float x) {
  Float one[1] = {x};
  exp(one);
  return one[0];
}

/// log(1 + x) for 0 <= x <= 1, relative error below 4 ulp: the odd series of 2 artanh(x / (2 + x)).
ARMILLARY_INLINE Float log1p(Float x) {
  const Float y = div(x, add(x, all(2.0f)));
  const Float square = mul(y, y);
  Float p = all(2.0f / 15);
  p = fma(p, square, all(2.0f / 13));
  p = fma(p, square, all(2.0f / 11));
  p = fma(p, square, all(2.0f / 9));
  p = fma(p, square, all(2.0f / 7));
  p = fma(p, square, all(2.0f / 5));
  p = fma(p, square, all(2.0f / 3));
  p = fma(p, square, all(2.0f));
  return mul(p, y);
}

/// tanh(x), relative error below 4 ulp.
ARMILLARY_INLINE Float tanh(Float x) {
  const Float magnitude = abs(x);
  // Small |x| by the odd series (Cephes tanhf), since 1 - exp(-2 |x|) cancels there.
  const Float square = mul(x, x);
  Float p = all(-5.70498872745e-3f);
  p = fma(p, square, all(2.06390887954e-2f));
  p = fma(p, square, all(-5.37397155531e-2f));
  p = fma(p, square, all(1.33314422036e-1f));
  p = fma(p, square, all(-3.33332819422e-1f));
  const Float small = fma(mul(p, square), x, x);
  const Float e = exp(mul(magnitude, all(-2.0f)));
  const Float large = sign_of(x, div(sub(all(1.0f), e), add(all(1.0f), e)));
  return if_less(magnitude, all(0.625f), small, large);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
