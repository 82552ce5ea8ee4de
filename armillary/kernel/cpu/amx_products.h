// amx_products.h: sums of 32 x 32 floats, in the four tiles of sums, and how they come to memory.
#pragma once

#include "armillary/kernel/cpu/amx.h"

#if defined(ARMILLARY_AMX)

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Nothing is done beside products.
struct Nothing {
  ARMILLARY_INLINE void step() {}
};

/// Four sums in registers that belong to memory: tiles one after the other, in the order of their
/// registers. They are stored one by one beside the first products of the next sums, for a tile
/// that is stored keeps the tile unit waiting.
class PendingSums {
 public:
  explicit PendingSums(float* nowhere) : to_(nowhere), nowhere_(nowhere) {}

  /// Those that are computed next belong to `to`.
  ARMILLARY_INLINE void put(float* to) { to_ = to; }
  template <int kTile>
  ARMILLARY_INLINE void store() const {
    tile_store<kTile>(to_ + kTile * kTileFloats);
  }
  ARMILLARY_INLINE void flush() {
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    to_ = nowhere_;
  }

 private:
  float* to_;
  float* nowhere_;  ///< Four tiles of anything.
};

/// Two neighbouring tiles of a factor, and where the next two of a sum are.
struct TilesOf {
  const float* data = nullptr;
  int other = kTileFloats;     ///< To the second tile, in floats.
  int step = 2 * kTileFloats;  ///< To the next term of a sum.
  int part = 0;                ///< To the next part.
};

template <int kTile>
ARMILLARY_INLINE void begin_sum(const float* from) {
  if (from == nullptr) return tile_zero<kTile>();
  tile_load<kTile>(from + kTile * kTileFloats);
}

/// Which factor comes from the second cache, and is used once for each time that it is loaded.
enum class Streamed : std::uint8_t { A, B };

template <Streamed kStreamed, int kTile>
ARMILLARY_INLINE void load_factor(const float* from) {
  if constexpr ((kTile < 6) == (kStreamed == Streamed::A)) {
    tile_stream<kTile>(from);
  } else {
    tile_load<kTile>(from);
  }
}

/// Which factors of a product are not in their registers yet.
enum class Fresh : std::uint8_t { Both, A, B };

/// Products of 2 x 2 tiles of sums.
template <Streamed kStreamed, class Beside>
class TileProducts {
 public:
  TileProducts(const TilesOf& a, const TilesOf& b, const float* from, PendingSums& pending,
               Beside& beside)
      : a_(a), b_(b), from_(from), pending_(pending), beside_(beside) {}

  /// Of a term, in parts, that of the first parts last. A part of the streamed factor is loaded
  /// once.
  template <int kParts>
  ARMILLARY_INLINE void add(int term) {
    constexpr bool kA = kStreamed == Streamed::A;
    constexpr Fresh kStream = kA ? Fresh::A : Fresh::B;
    constexpr Fresh kStay = kA ? Fresh::B : Fresh::A;
    const bool first = term == 0;
    if constexpr (kParts == 1) {
      multiply<Fresh::Both, kA>(0, 0, first);
    } else {
      static_assert(kParts == 3);
      multiply<Fresh::Both, kA>(2, 0, first);
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
  /// Parts of the streamed factor and of the other.
  template <Fresh kFresh, bool kStreamedA>
  ARMILLARY_INLINE void multiply(int streamed, int other, bool first) {
    constexpr bool kLoadA = kFresh != Fresh::B;
    constexpr bool kLoadB = kFresh != Fresh::A;
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

/// Products of a term: of parts whose product is not left out.
constexpr int products_of_term(int parts) {
  return parts * (parts + 1) / 2;
}

/// 2 x 2 tiles of sums += A B, over `steps` terms of 32 elements: of zeros, or of what is at
/// `from`. `beside.step()` is done after each of 4 `steps` products_of_term(kParts) products.
template <int kParts, Streamed kStreamed, class Beside>
ARMILLARY_INLINE void multiply_tiles(TilesOf a, TilesOf b, int steps, const float* from,
                                     PendingSums& pending, float* to, Beside& beside) {
  TileProducts<kStreamed, Beside> products(a, b, from, pending, beside);
  for (int i = 0; i < steps; ++i) products.template add<kParts>(i);
  pending.put(to);
}

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA

#endif
