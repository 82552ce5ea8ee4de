// peak.h: what the cores could do, measured: the number that every rate of a kernel is held
// against.
#pragma once

#include <string_view>

namespace armillary::bench {

/// Multiply-adds in fp32 that `threads` threads finish a second, in GFLOP/s (2 an element): nothing
/// but independent vector FMAs in registers, of the widest set up to `isa` ("avx512", "avx2",
/// "portable", as kernel/cpu/isa.h names them). Takes about `seconds`. Requires a set that this CPU
/// has.
double peak_gflops(std::string_view isa, int threads, double seconds);

}  // namespace armillary::bench
