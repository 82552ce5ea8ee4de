#include "armillary/bench/peak.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using Burn = void (*)(std::int64_t rounds);

struct Unit {
  std::string_view isa;
  Burn burn;
  double flops_a_round;
};

// Registers are named in assembly: g++ 12 spills an array of accumulators. Enough of them that no
// multiply-add waits for the one before.
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

__attribute__((target("avx2,fma"))) void burn_avx2(std::int64_t rounds) {
  asm volatile(ARMILLARY_ZERO_Y(14) ARMILLARY_ZERO_Y(15) ARMILLARY_EACH_OF_12(ARMILLARY_ZERO_Y)::
                   : ARMILLARY_EACH_OF_12(ARMILLARY_CLOBBER) "xmm14", "xmm15");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(ARMILLARY_EACH_OF_12(ARMILLARY_FMA_Y)::
                     : ARMILLARY_EACH_OF_12(ARMILLARY_CLOBBER) "xmm14", "xmm15");
  }
}

__attribute__((target("avx512f"))) void burn_avx512(std::int64_t rounds) {
  asm volatile(ARMILLARY_ZERO_Z(30) ARMILLARY_ZERO_Z(31) ARMILLARY_EACH_OF_24(ARMILLARY_ZERO_Z)::
                   : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(ARMILLARY_EACH_OF_24(ARMILLARY_FMA_Z)::
                     : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  }
}
#endif

/// Vectors of the compiler's own, in the instruction set that any CPU of this kind has.
void burn_portable(std::int64_t rounds) {
  using Vector [[gnu::vector_size(16)]] = float;
  const Vector a = {1.0F, 1.0F, 1.0F, 1.0F};
  Vector s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a;
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = s0 * a + a, s1 = s1 * a + a, s2 = s2 * a + a, s3 = s3 * a + a;
    s4 = s4 * a + a, s5 = s5 * a + a, s6 = s6 * a + a, s7 = s7 * a + a;
    asm volatile(""
                 : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5), "+x"(s6), "+x"(s7));
  }
}

constexpr Unit kUnits[] = {
#if defined(__x86_64__)
    {"avx512", burn_avx512, 24.0 * 32},
    {"avx2", burn_avx2, 12.0 * 16},
#endif
    {"portable", burn_portable, 8.0 * 8},
};

const Unit& unit_of(std::string_view isa) {
  for (const Unit& unit : kUnits) {
    if (isa.substr(0, unit.isa.size()) == unit.isa) return unit;
  }
  fail<InvalidArgument>("peak: instruction set {}; avx512, avx2 or portable is required", isa);
}

}  // namespace

double peak_gflops(std::string_view isa, int threads, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Unit& unit = unit_of(isa);
  constexpr std::int64_t kRounds = 100'000;
  std::atomic<std::int64_t> done = 0;
  const Clock::time_point begin = Clock::now();
  const auto work = [&] {
    while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
      unit.burn(kRounds);
      done += kRounds;
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  return static_cast<double>(done.load()) * unit.flops_a_round / elapsed / 1e9;
}

}  // namespace armillary::bench
