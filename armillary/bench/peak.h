// peak.h: what the cores could do, measured: the number that every rate of a kernel is held
// against.
#pragma once

#include <string_view>

#include "armillary/plan/problem.h"

namespace armillary::bench {

/// Multiply-adds that `threads` threads finish a second, in GFLOP/s (2 an element): nothing
/// but independent vector multiply-adds in registers, of the widest set up to `isa` ("avx512_bf16",
/// "avx512", "avx2", "portable", as kernel/cpu/isa.h names them); of fp32, or of bf16 if `dtype` is
/// and the set has instructions for it.
///
/// Of all windows, of about a millisecond each, in which all threads run from begin to end: what
/// neighbours take of the cores they take here as they do of a kernel that runs as long. Takes
/// about `seconds`, at least one window; of several threads 0.15 s more, before which they may
/// share a core. Requires a set that this CPU has. @throws InvalidArgument for a name that is not
/// one of them, and below 1 thread.
double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds);

}  // namespace armillary::bench
