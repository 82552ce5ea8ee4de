// dropout.h: dropout of attention probabilities as a pure function of their global position.
//
//   (seed, step, batch, head, query, key) --Philox4x32-10--> dropped or kept
//
// There is no state and no order. So every kernel on every rank of every world drops the same
// entries, in forward, in backward and in a recomputed pass. This header has no tensors.
// Paper: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace armillary::kernel {

/// A probability becomes 0 with chance p, else 1 / (1 - p) times as large. Off by default.
struct Dropout {
  double p = 0;            ///< chance of an entry to be dropped, 0 <= p < 1, in steps of 2^-32
  std::uint64_t seed = 0;  ///< one per run and layer: two layers must not drop the same entries
  std::uint64_t step = 0;  ///< number of the forward pass; micro-batches of one step differ
  bool on() const { return p != 0; }
};

/// Four 32-bit words: a counter of the generator, or its output.
using Words = std::array<std::uint32_t, 4>;

/// The generator Philox4x32-10: for every key a bijection of `counter`. Bits equal to Random123.
Words philox4x32_10(Words counter, std::array<std::uint32_t, 2> key);

/// Dropout decisions for one batch entry and query head. With philox(counter; key), and 64-bit
/// numbers written as two words, the low one first:
///
///   key   = first two words of philox(step, batch, head; seed)
///   entry = word k % 4 of philox(q, k / 4; key), dropped if below p 2^32
///
/// So four neighbouring keys share a call of the generator. `batch` is the index of the first
/// tensor dimension; head, q and k are global numbers. batch and head are below 2^32, positions
/// below 2^56. Immutable.
class DropoutStream {
 public:
  DropoutStream(const Dropout& dropout, std::int64_t batch, std::int64_t head);

  /// Whether the probability of query q and key k is dropped.
  bool drops(std::int64_t q, std::int64_t k) const;

  /// Writes the factor of each key's probability for query q: 0 or 1 / (1 - p). Requires as many
  /// factors as keys. Cost: one call of the generator for every run of keys with equal k / 4.
  void fill(std::int64_t q, std::span<const std::int64_t> keys, std::span<float> factors) const;
  void fill(std::int64_t q, std::span<const std::int64_t> keys, std::span<double> factors) const;

 private:
  /// The words of keys 4 number to 4 number + 3.
  Words quad(std::int64_t q, std::int64_t number) const;
  template <class Number>
  void fill_row(std::int64_t q, std::span<const std::int64_t> keys,
                std::span<Number> factors) const;

  std::array<std::uint32_t, 2> key_;
  std::uint64_t threshold_;  ///< entries with a word below it are dropped
  double kept_;              ///< 1 / (1 - p)
};

}  // namespace armillary::kernel
