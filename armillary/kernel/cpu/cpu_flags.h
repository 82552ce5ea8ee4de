// cpu_flags.h: instructions that the CPU has and that the operating system lets a process use.
#pragma once

#include <string>
#include <string_view>

namespace armillary::kernel::cpu {

/// Answers of the CPU and of the operating system; on other CPUs than x86-64 all stay false.
struct CpuFlags {
  bool avx2 = false;
  bool fma = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512_bf16 = false;
  bool amx_tile = false;
  bool amx_bf16 = false;
  bool tiles_enabled = false;  ///< The operating system saves tiles: XCR0 has bits 17 and 18.
  int tiles_refused = 0;       ///< The errno with which it refused them to this process, or 0.
};

/// Reason why a CPU with `flags` cannot run the set `name` (isa.h), or nothing if it can: "the CPU
/// has no amx_tile, amx_bf16".
std::string missing_for(std::string_view name, const CpuFlags& flags);

/// The same for this process. Linux gives tiles only to a process that asked for them, and keeps
/// more memory for its signals from then on, so it is asked at the first question about "amx".
std::string missing_for(std::string_view name);

/// Whether this process may use tiles of bf16. The first call asks the operating system; any thread
/// may call it.
bool amx_permitted();

}  // namespace armillary::kernel::cpu
