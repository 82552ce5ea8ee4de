// peak.h: what the cores could do, measured: the number that every rate of a kernel is held
// against.
#pragma once

#include <string_view>

#include "armillary/plan/problem.h"

namespace armillary::bench {

/// Multiply-adds that `threads` threads finish a second, in GFLOP/s (2 an element): nothing but
/// independent multiply-adds (kernel/cpu/peak.h) in the fastest way that the CPU has for `dtype`
/// with the instructions of the set `isa` ("amx", "avx512_bf16", "avx512", "avx2", "portable", as
/// kernel/cpu/isa.h names them) and of those below it. For bf16 that is the best of tiles, pairs
/// and fp32, which one thread probes first; for every other dtype fp32.
///
/// Windows of about a millisecond count in which all threads run from begin to end: neighbours take
/// as much of the cores here as they do of a kernel that runs as long. Takes about `seconds`, at
/// least one window, and 0.15 s more with several threads, before which they may share a core.
/// Requires a set that this CPU has. @throws InvalidArgument for a name that is not one of them,
/// and below 1 thread.
double peak_gflops(std::string_view isa, plan::Dtype dtype, int threads, double seconds);

}  // namespace armillary::bench
