// amx_gemm-inl.h: the GEMM microkernel of AMX: 32 x 32 accumulators in four tiles, and how they
// reach memory.
//
// Each step of 32 terms loads two tiles of A and two of B for four products (or six times as many
// for floats in parts). Two kinds of work are interleaved with the products: vector work of the
// caller, by beside.step(), and the stores of the previous accumulators (PendingSums).
#pragma once

#include "armillary/kernel/cpu/amx-inl.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

struct Nothing {
  ARMILLARY_INLINE void step() {}
};

/// Four tiles of accumulators in registers that are still to be stored: tiles one after the other,
/// in the order of their registers. A tile that is stored right after its last product would
/// keep the tile unit waiting, so each is stored just before its register is reused by the next
/// accumulators.
class PendingSums {
 public:
  explicit PendingSums(float* nowhere) : to_(nowhere), nowhere_(nowhere) {}

  ARMILLARY_INLINE void put(float* to) { to_ = to; }
  template <int kTile>
  ARMILLARY_INLINE void store() const {
    tile_store<kTile>(to_ + kTile * kTileFloats);
  }
  /// Stores all four now, so that vector code can read them.
  ARMILLARY_INLINE void flush() {
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    to_ = nowhere_;
  }

 private:
  float* to_;
  float* nowhere_;  ///< four tiles of scratch: the target when nothing is pending
};

/// Two neighbouring tiles of a factor, and the distances to the next ones, in floats.
struct TilesOf {
  const float* data = nullptr;
  int other = kTileFloats;     ///< to the second tile
  int step = 2 * kTileFloats;  ///< to the next 32 terms of the sum
  int part = 0;                ///< to the next part
};

/// A product of 2 x 2 tiles: `to` = `from` + A B over `steps` steps of 32 terms.
struct TileGemm {
  TilesOf a;
  TilesOf b;
  int steps = 0;
  const float* from = nullptr;  ///< four tiles of accumulators; null: zeros
  float* to = nullptr;          ///< four tiles
};

/// Initialises an accumulator: 0, or a tile in memory.
template <int kTile>
ARMILLARY_INLINE void begin_sum(const float* from) {
  if (from == nullptr) return tile_zero<kTile>();
  tile_load<kTile>(from + kTile * kTileFloats);
}

/// The factor that streams from the second cache level: a product loads a tile once.
enum class Streamed : std::uint8_t { A, B };

template <Streamed kStreamed, int kTile>
ARMILLARY_INLINE void load_factor(const float* from) {
  if constexpr ((kTile < 6) == (kStreamed == Streamed::A)) {
    tile_stream<kTile>(from);
  } else {
    tile_load<kTile>(from);
  }
}

/// The factors of a product that must be loaded into their registers first.
enum class Load : std::uint8_t { Both, A, B };

/// The products of 2 x 2 tiles of accumulators, step by step.
template <Streamed kStreamed, class Beside>
class TileProducts {
 public:
  TileProducts(const TileGemm& gemm, PendingSums& pending, Beside& beside)
      : a_(gemm.a), b_(gemm.b), from_(gemm.from), pending_(pending), beside_(beside) {}

  /// The products of one step of 32 terms. With parts, the small products come first and that of
  /// the two first parts last; each part of the streamed factor is loaded once.
  template <int kParts>
  ARMILLARY_INLINE void add(int step) {
    constexpr bool kA = kStreamed == Streamed::A;
    constexpr Load kStream = kA ? Load::A : Load::B;
    constexpr Load kStay = kA ? Load::B : Load::A;
    const bool first = step == 0;
    if constexpr (kParts == 1) {
      multiply<Load::Both, kA>(0, 0, first);
    } else {
      static_assert(kParts == 3);
      multiply<Load::Both, kA>(2, 0, first);
      multiply<kStream, kA>(1, 0, false);
      multiply<kStay, kA>(1, 1, false);
      multiply<kStream, kA>(0, 1, false);
      multiply<kStay, kA>(0, 2, false);
      multiply<kStay, kA>(0, 0, false);
    }
    a_.data += a_.step;
    b_.data += b_.step;
  }

 private:
  /// Four products: part `streamed` of the streamed factor by part `other` of the other one.
  template <Load kLoad, bool kStreamedA>
  ARMILLARY_INLINE void multiply(int streamed, int other, bool first) {
    constexpr bool kLoadA = kLoad != Load::B;
    constexpr bool kLoadB = kLoad != Load::A;
    const float* const a = a_.data + (kStreamedA ? streamed : other) * a_.part;
    const float* const b = b_.data + (kStreamedA ? other : streamed) * b_.part;
    if constexpr (kLoadA) load_factor<kStreamed, 4>(a);
    if constexpr (kLoadB) load_factor<kStreamed, 6>(b);
    add_to<0, 4, 6>(first);
    if constexpr (kLoadB) load_factor<kStreamed, 7>(b + b_.other);
    add_to<1, 4, 7>(first);
    if constexpr (kLoadA) load_factor<kStreamed, 5>(a + a_.other);
    add_to<2, 5, 6>(first);
    add_to<3, 5, 7>(first);
  }
  template <int kSum, int kA, int kB>
  ARMILLARY_INLINE void add_to(bool first) {
    if (first) pending_.store<kSum>();
    if (first) begin_sum<kSum>(from_);
    tile_dot<kSum, kA, kB>();
    beside_.step();
  }

  TilesOf a_;
  TilesOf b_;
  const float* from_;
  PendingSums& pending_;
  Beside& beside_;
};

/// Products of parts for one product of elements: 1 for bf16, 6 for three parts.
constexpr int products_per_step(int parts) {
  return parts * (parts + 1) / 2;
}

/// Computes the product. Its accumulators stay pending for `gemm.to`. `beside.step()` follows each
/// product of tiles: 4 * gemm.steps * products_per_step(kParts) times.
template <int kParts, Streamed kStreamed, class Beside>
ARMILLARY_INLINE void multiply_tiles(const TileGemm& gemm, PendingSums& pending, Beside& beside) {
  TileProducts<kStreamed, Beside> products(gemm, pending, beside);
  const int steps = gemm.steps;
  for (int i = 0; i < steps; ++i) products.template add<kParts>(i);
  pending.put(gemm.to);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
