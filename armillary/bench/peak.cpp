#include "armillary/bench/peak.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <future>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using Burn = void (*)(std::int64_t rounds);

struct Unit {
  std::string_view isa;  ///< The first letters of its name.
  bool bf16 = false;     ///< Multiplies pairs of bf16 into fp32.
  Burn burn = nullptr;
  double flops_a_round = 0;
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
#define ARMILLARY_DOT_Z(n) "vdpbf16ps %%zmm30,%%zmm31,%%zmm" #n "\n\t"

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

// A pair of products a lane: vdpbf16ps.
__attribute__((target("avx512f,avx512bf16"))) void burn_avx512_bf16(std::int64_t rounds) {
  asm volatile(ARMILLARY_ZERO_Z(30) ARMILLARY_ZERO_Z(31) ARMILLARY_EACH_OF_24(ARMILLARY_ZERO_Z)::
                   : ARMILLARY_EACH_OF_24(ARMILLARY_CLOBBER) "xmm30", "xmm31");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(ARMILLARY_EACH_OF_24(ARMILLARY_DOT_Z)::
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
    {"avx512_bf16", true, burn_avx512_bf16, 24.0 * 64},
    {"avx512", false, burn_avx512, 24.0 * 32},
    {"avx2", false, burn_avx2, 12.0 * 16},
#endif
    {"portable", false, burn_portable, 8.0 * 8},
};

const Unit& unit_of(std::string_view isa, plan::Dtype dtype) {
  for (const Unit& unit : kUnits) {
    if (unit.bf16 && dtype != plan::Dtype::Bf16) continue;
    if (isa.substr(0, unit.isa.size()) == unit.isa) return unit;
  }
  fail<InvalidArgument>("peak: instruction set {}; avx512, avx2 or portable is required", isa);
}

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct Window {
  Clock::time_point begin;
  Clock::time_point end;
};

}  // namespace

double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds) {
  if (threads < 1) fail<InvalidArgument>("peak: {} threads; at least 1 is required", threads);
  const Unit& unit = unit_of(isa, dtype);
  constexpr std::int64_t kRounds = 400'000;  // about a millisecond
  // Threads that have just started may share a core for tens of milliseconds, and then look half as
  // fast.
  const double settled = threads > 1 ? 0.15 : 0;
  const double flops = static_cast<double>(kRounds) * unit.flops_a_round * threads;
  const Clock::time_point begin = Clock::now();
  std::vector<Window> windows(threads);
  double burned = 0;
  double taken = 0;
  bool over = false;
  const auto judge = [&]() noexcept {
    const auto [first, last] = std::pair(
        std::min_element(windows.begin(), windows.end(),
                         [](const Window& a, const Window& b) { return a.begin < b.begin; }),
        std::max_element(windows.begin(), windows.end(),
                         [](const Window& a, const Window& b) { return a.end < b.end; }));
    const Clock::time_point now = Clock::now();
    over = seconds_between(begin, now) >= settled + seconds;
    if (!over && seconds_between(begin, first->begin) < settled) return;
    burned += flops;
    taken += seconds_between(first->begin, last->end);
  };
  std::barrier together(threads);
  std::barrier judged(threads, judge);
  const auto work = [&](int i) {
    while (!over) {
      together.arrive_and_wait();
      windows[i].begin = Clock::now();
      unit.burn(kRounds);
      windows[i].end = Clock::now();
      judged.arrive_and_wait();
    }
  };
  // Nobody waits at a barrier before all are there.
  std::promise<bool> complete;
  const std::shared_future<bool> begins = complete.get_future().share();
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i) {
        others.emplace_back([&, i] {
          if (begins.get()) work(i);
        });
      }
    } catch (const std::system_error& error) {
      complete.set_value(false);
      fail<Error>("peak: thread {} of {}: {}", others.size() + 1, threads, error.what());
    }
    complete.set_value(true);
    work(0);
  }
  return burned / taken / 1e9;
}

}  // namespace armillary::bench
