// tile_registers.h: the tile configuration of a thread, for all that multiply by AMX on it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)

namespace armillary::kernel::cpu {

/// What ldtilecfg reads: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// The tile configuration of this thread for as long as it lives; then what was before, of which
/// only the configuration is kept: whoever multiplies tiles loads them first.
class TileRegisters {
 public:
  __attribute__((always_inline)) TileRegisters() {
    static constexpr TileConfig kConfig;
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" ::"m"(kConfig));
  }
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
  TileConfig before_;
};

}  // namespace armillary::kernel::cpu

#endif
