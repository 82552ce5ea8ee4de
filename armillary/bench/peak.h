// peak.h: what the cores could do, measured: the number that every rate of a kernel is held
// against.
#pragma once

#include <string_view>

#include "armillary/plan/problem.h"

namespace armillary::bench {

/// Most multiply-adds that `threads` threads finish a second, in GFLOP/s (2 an element): nothing
/// but independent vector multiply-adds in registers, of the widest set up to `isa` ("avx512_bf16",
/// "avx512", "avx2", "portable", as kernel/cpu/isa.h names them); of fp32, or of bf16 if `dtype` is
/// and the set has instructions for it.
///
/// The best of windows of about a millisecond in which all threads run from begin to end: a thread
/// that starts late, or a neighbour that takes a core, spoils a window and not the result. Takes
/// about `seconds`, at least one window and, of several threads, 0.15 s. Requires a set that this
/// CPU has. @throws InvalidArgument for a name that is not one of them, and below 1 thread.
double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds);

}  // namespace armillary::bench
