// tile_registers.h: the AMX tile configuration of a thread, for all code that multiplies tiles.
//
// Tile instructions fault until the thread has loaded a configuration, and the configuration is
// state of the thread that other libraries (oneDNN) use as well. So every kernel call that
// multiplies tiles sets its own and restores the previous one at its end.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include <cstdint>

#if defined(__x86_64__)

namespace armillary::kernel::cpu {

/// Operand of ldtilecfg and sttilecfg, 64 bytes: palette, start row, then bytes of a row and rows
/// of each tile. The default is eight tiles of 16 rows of 64 bytes; the entries 8 to 15 are
/// reserved and 0.
struct alignas(64) TileConfig {
  /// Palette 0 means that tiles are not configured; palette 1 has tiles of at most 16 rows of 64
  /// bytes.
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// RAII: configures the tiles of the thread, and restores the previous configuration at the end of
/// the scope. Contents of tiles are not restored: every user of tiles loads or zeroes them first.
/// Requires amx_permitted() (cpu_flags.h).
class TileRegisters {
 public:
  /// Saves the configuration of the thread, then loads eight tiles of 1 KiB.
  __attribute__((always_inline)) TileRegisters() {
    static constexpr TileConfig kConfig;
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" ::"m"(kConfig));
  }
  /// Restores it; tiles are released if there was none.
  __attribute__((always_inline)) ~TileRegisters() {
    if (before_.palette == 0) {
      asm volatile("tilerelease" ::: "memory");
    } else {
      asm volatile("ldtilecfg %0" ::"m"(before_));
    }
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  /// Configuration at the time of construction.
  TileConfig before_;
};

}  // namespace armillary::kernel::cpu

#endif
