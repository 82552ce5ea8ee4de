// cpu_flags.h: instructions that the CPU has and that the operating system lets a process use.
//
// A set of kernels runs only where both agree: vectors by CPUID, AMX tiles also by XCR0 and, on
// Linux, by a permission that each process must ask for.
#pragma once

#include <string>
#include <string_view>

namespace armillary::kernel::cpu {

/// Answers of the CPU and of the operating system. On CPUs other than x86-64 all stay false.
struct CpuFlags {
  bool avx2 = false;
  bool fma = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512_bf16 = false;
  bool amx_tile = false;
  bool amx_bf16 = false;
  /// The operating system saves tile registers: XCR0 has bits 17 and 18.
  bool tiles_enabled = false;
  /// errno of the refused request for tiles of this process; 0 if it was granted or never made.
  int tiles_refused = 0;
};

/// Reason why a CPU with `flags` cannot run the set `name` (isa.h), or an empty string if it can.
/// Example: "the CPU has no amx_tile, amx_bf16". Sets without requirements ("portable", "emulated")
/// never lack anything.
std::string missing_for(std::string_view name, const CpuFlags& flags);

/// The same for this process. Linux grants tiles only to a process that asks for them, and then
/// needs more memory for its signal stacks; so the request is made at the first question about
/// "amx", and only if nothing else is missing. Threads: any.
std::string missing_for(std::string_view name);

/// Whether this process may use tiles of bf16. The first call asks the operating system; any thread
/// may call it.
bool amx_permitted();

/// Whether the CPU has instructions that multiply bf16: AVX512_BF16 or AMX_BF16 on x86-64 (tiles
/// saved by the operating system), BF16 on Arm (Linux). Asks for no permission. Threads: any.
bool multiplies_bf16();

}  // namespace armillary::kernel::cpu
