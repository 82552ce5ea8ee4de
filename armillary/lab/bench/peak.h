// peak.h: measured peak of the cores, to which every rate of a kernel is compared.
#pragma once

#include <string_view>

#include "armillary/plan/problem.h"

namespace armillary::bench {

/// GFLOP/s (2 flops a multiply-add) of `threads` threads that do nothing but independent
/// multiply-adds. Each uses the fastest instruction (kernel/cpu/peak.h) for `dtype` up to the set
/// `isa`: "portable", "avx2", "avx512", "avx512_bf16" or "amx" (kernel/cpu/isa.h), which the CPU
/// must have. For bf16 one thread first probes tiles, dot products and fp32; all else is fp32.
///
/// Only time in which all threads run counts, in windows of about a millisecond: neighbours then
/// slow down the peak as much as a kernel. Takes about `seconds`, at least one window, and 0.15 s
/// more with several threads. @throws InvalidArgument for an unknown set or fewer than 1 thread.
double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds);

}  // namespace armillary::bench
