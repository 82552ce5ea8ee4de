// dropout.h: which attention probabilities are dropped: a function of what they are, not of who
// asks.
//
//   (seed, step, batch, head, query, key) --Philox4x32-10--> dropped or kept
//
// No state and no order, so that any kernel on any rank of any world drops the same entries,
// forward and backward, and a pass that is computed again drops them again. No tensors here.
// Paper: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace armillary::kernel {

/// Probabilities of attention become 0, or 1 / (1 - p) times as large. Off by default.
struct Dropout {
  double p = 0;            ///< Share of entries that are dropped, 0 <= p < 1; rounded to 2^-32.
  std::uint64_t seed = 0;  ///< One per run and layer: two layers must not drop the same entries.
  std::uint64_t step = 0;  ///< Number of the forward pass: micro-batches of one step differ too.
  bool on() const { return p != 0; }
};

using Words = std::array<std::uint32_t, 4>;

/// The generator itself, a bijection of `counter` for every key; equal to that of Random123.
Words philox4x32_10(Words counter, std::array<std::uint32_t, 2> key);

/// The decisions for one batch entry and query head. With philox(counter; key), numbers written as
/// two words, low one first:
///
///   key   = first two words of philox(step, batch, head; seed)
///   entry = word k % 4 of philox(q, k / 4; key), dropped if below p 2^32
///
/// so neighbouring keys share a call. `batch` is the index of dim 0, the others are global numbers,
/// all below 2^32 or, for positions, 2^56. Immutable.
class DropoutStream {
 public:
  DropoutStream(const Dropout& dropout, std::int64_t batch, std::int64_t head);

  bool drops(std::int64_t q, std::int64_t k) const;

  /// What query q multiplies the probabilities of these keys with: 0 or 1 / (1 - p). Requires as
  /// many factors as keys. Cost: 10 rounds for every run of keys with equal k / 4.
  void fill(std::int64_t q, std::span<const std::int64_t> keys, std::span<float> factors) const;
  void fill(std::int64_t q, std::span<const std::int64_t> keys, std::span<double> factors) const;

 private:
  Words quad(std::int64_t q, std::int64_t number) const;
  template <class Number>
  void fill_row(std::int64_t q, std::span<const std::int64_t> keys,
                std::span<Number> factors) const;

  std::array<std::uint32_t, 2> key_;
  std::uint64_t threshold_;  ///< Words below it are dropped.
  double kept_;
};

}  // namespace armillary::kernel
