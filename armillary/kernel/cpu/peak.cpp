// Loops of independent multiply-adds on registers, one for each instruction, and their timing.
// Accumulators are numerous enough that no multiply-add waits for the previous one. Rates are
// counted in flops: 2 a multiply-add.
#include "armillary/kernel/cpu/peak.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <random>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/kernel/cpu/tile_registers.h"

namespace armillary::kernel::cpu {
namespace {

// Registers are named in assembly, since the compiler (g++ 12) would spill an array of
// accumulators.
#if defined(__x86_64__)
#define ARMILLARY_EACH_OF_12(DO) \
  DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define ARMILLARY_EACH_OF_24(DO) \
  ARMILLARY_EACH_OF_12(DO)       \
  DO(12) DO(13) DO(14) DO(15) DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23)
#define ARMILLARY_CLOBBER(n) "xmm" #n,
#define ARMILLARY_ZERO_Y(n) "vpxor %%ymm" #n ",%%ymm" #n ",%%ymm" #n "\n\t"
#define ARMILLARY_FMA_Y(n) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #n "\n\t"
#define ARMILLARY_ZERO_Z(n) "vpxorq %%zmm" #n ",%%zmm" #n ",%%zmm" #n "\n\t"
#define ARMILLARY_FMA_Z(n) "vfmadd231ps %%zmm30,%%zmm31,%%zmm" #n "\n\t"
#define ARMILLARY_DOT_Z(n) "vdpbf16ps %%zmm30,%%zmm31,%%zmm" #n "\n\t"

/// 12 accumulators of 8 floats, two factors.
__attribute__((target("avx2,fma"))) void burn_avx2(std::int64_t iterations) {
  asm volatile(ARMILLARY_ZERO_Y(14) ARMILLARY_ZERO_Y(15) ARMILLARY_EACH_OF_12(ARMILLARY_ZERO_Y)::
                   : ARMILLARY_EACH_OF_12(ARMILLARY_CLOBBER) "xmm14", "xmm15");
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile(ARMILLARY_EACH_OF_12(ARMILLARY_FMA_Y)::
                     : ARMILLARY_EACH_OF_12(ARMILLARY_CLOBBER) "xmm14", "xmm15");
  }
}

/// 24 accumulators of 16 floats, two factors.
__attribute__((target("avx512f"))) void burn_avx512(std::int64_t iterations) {
  asm volatile(ARMILLARY_ZERO_Z(30) ARMILLARY_ZERO_Z(31) ARMILLARY_EACH_OF_24(ARMILLARY_ZERO_Z)::
                   : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile(ARMILLARY_EACH_OF_24(ARMILLARY_FMA_Z)::
                     : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  }
}

/// The same with two bf16 terms a float.
__attribute__((target("avx512f,avx512bf16"))) void burn_avx512_bf16(std::int64_t iterations) {
  asm volatile(ARMILLARY_ZERO_Z(30) ARMILLARY_ZERO_Z(31) ARMILLARY_EACH_OF_24(ARMILLARY_ZERO_Z)::
                   : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile(ARMILLARY_EACH_OF_24(ARMILLARY_DOT_Z)::
                     : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  }
}

/// Two tiles of A and two of B for each of four steps: 16 KiB, a third of an L1 cache of 48 KiB.
struct alignas(64) TileData {
  static constexpr int kSteps = 4;
  std::uint16_t values[kSteps][4][16][32];
};

/// Normally distributed numbers: multiplying zeros takes less power, and would measure a clock rate
/// that real data never reaches.
const TileData& normal_tiles() {
  static const TileData data = [] {
    TileData drawn;
    std::mt19937 bits(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same tiles each time
    std::normal_distribution<float> normal;
    auto* const first = &drawn.values[0][0][0][0];
    std::generate_n(first, sizeof(drawn.values) / sizeof(*first), [&] {
      return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(bits)) >> 16U);
    });
    return drawn;
  }();
  return data;
}

/// 32 x 32 accumulators as a kernel computes them: four tile loads for four products.
void burn_amx(std::int64_t iterations) {
  const TileData& data = normal_tiles();
  const TileRegisters configured;
  constexpr std::int64_t kRowBytes = 64;
  asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (const auto& step : data.values) {
      asm volatile(
          "tileloadd (%0,%1,1),%%tmm4\n\t"
          "tileloadd 1024(%0,%1,1),%%tmm5\n\t"
          "tileloadd 2048(%0,%1,1),%%tmm6\n\t"
          "tileloadd 3072(%0,%1,1),%%tmm7\n\t"
          "tdpbf16ps %%tmm6,%%tmm4,%%tmm0\n\t"
          "tdpbf16ps %%tmm7,%%tmm4,%%tmm1\n\t"
          "tdpbf16ps %%tmm6,%%tmm5,%%tmm2\n\t"
          "tdpbf16ps %%tmm7,%%tmm5,%%tmm3" ::"r"(&step),
          "r"(kRowBytes)
          : "memory");
    }
  }
}
#endif

/// 8 accumulators in 128-bit vectors of the compiler, which any CPU of this architecture has.
void burn_portable(std::int64_t iterations) {
  using Vector [[gnu::vector_size(16)]] = float;
  const Vector a = {1.0F, 1.0F, 1.0F, 1.0F};
  Vector s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a;
  for (std::int64_t i = 0; i < iterations; ++i) {
    s0 = s0 * a + a, s1 = s1 * a + a, s2 = s2 * a + a, s3 = s3 * a + a;
    s4 = s4 * a + a, s5 = s5 * a + a, s6 = s6 * a + a, s7 = s7 * a + a;
    // Keeps the accumulators in registers, and the loop from being optimised away.
    asm volatile(""
                 : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5), "+x"(s6), "+x"(s7));
  }
}

#if defined(__x86_64__)
/// Steps of four products of 16 x 16 accumulators over 32 terms.
constexpr double kTileFlops = TileData::kSteps * 4 * 16 * 16 * 32 * 2.0;
#endif

/// Best set first. fp32 on AMX takes six bf16 products for one (amx-inl.h).
constexpr BurnUnit kUnits[] = {
#if defined(__x86_64__)
    {"amx", "tdpbf16ps", true, burn_amx, kTileFlops, 10'000},
    {"amx", "6 tdpbf16ps", false, burn_amx, kTileFlops / 6, 10'000},
    {"avx512_bf16", "vdpbf16ps", true, burn_avx512_bf16, 24.0 * 64, 100'000},
    {"avx512", "vfmadd231ps, 512 bits", false, burn_avx512, 24.0 * 32, 200'000},
    {"avx2", "vfmadd231ps, 256 bits", false, burn_avx2, 12.0 * 16, 400'000},
#endif
    {"portable", "mulps, addps, 128 bits", false, burn_portable, 8.0 * 8, 400'000},
};

double burn_seconds(const BurnUnit& unit, std::int64_t iterations) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  unit.burn(iterations);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double gflops_of(const BurnUnit& unit, std::int64_t iterations, double seconds) {
  return unit.flops_per_iteration * static_cast<double>(iterations) / seconds / 1e9;
}

}  // namespace

std::span<const BurnUnit> burn_units() {
  return kUnits;
}

std::vector<const BurnUnit*> units_up_to(std::string_view isa, Element element) {
  std::vector<const BurnUnit*> units;
  bool reached = false;
  for (const BurnUnit& unit : kUnits) {
    // Skip units above `isa`, units of other dtypes, and units that the CPU lacks.
    reached = reached || unit.isa == isa;
    if (!reached || (unit.bf16 && element != Element::BFloat16)) continue;
    if (missing_for(unit.isa).empty()) units.push_back(&unit);
    // The first fp32 unit from `isa` on is its own: the list is complete.
    if (unit.bf16) continue;
    ARMILLARY_CHECK(!units.empty());
    return units;
  }
  fail<InvalidArgument>(
      "peak: instruction set {}; amx, avx512_bf16, avx512, avx2 or portable is required", isa);
}

double measure_gflops(const BurnUnit& unit, double seconds) {
  std::int64_t iterations = 0;
  double taken = 0;
  do {
    taken += burn_seconds(unit, unit.iterations_per_ms);
    iterations += unit.iterations_per_ms;
  } while (taken < seconds);
  return gflops_of(unit, iterations, taken);
}

std::vector<double> probe_gflops(std::span<const BurnUnit* const> units) {
  constexpr int kWindows = 5;
  static std::mutex mutex;
  static std::array<double, std::size(kUnits)> best{};
  const std::lock_guard lock(mutex);
  const auto index = [](const BurnUnit* unit) {
    return static_cast<std::size_t>(unit - std::data(kUnits));
  };
  // Units without a rate so far; `best` keeps rates for the whole process.
  std::vector<const BurnUnit*> unmeasured;
  std::copy_if(units.begin(), units.end(), std::back_inserter(unmeasured),
               [&](const BurnUnit* unit) { return best[index(unit)] == 0; });
  // Windows alternate between units, so that a disturbance hits all of them alike.
  for (int window = 0; window < kWindows; ++window) {
    for (const BurnUnit* unit : unmeasured) {
      const std::int64_t iterations = unit->iterations_per_ms / 10;
      double& gflops = best[index(unit)];
      gflops = std::max(gflops, gflops_of(*unit, iterations, burn_seconds(*unit, iterations)));
    }
  }
  // Rates in the order of the caller.
  std::vector<double> rates;
  rates.reserve(units.size());
  for (const BurnUnit* unit : units) rates.push_back(best[index(unit)]);
  return rates;
}

}  // namespace armillary::kernel::cpu
