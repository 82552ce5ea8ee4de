// Instruction sets by CPUID, saved registers by XGETBV, and permission for AMX tiles by
// arch_prctl(2). The rules for a set are a pure function of CpuFlags, so tests can ask about any
// CPU.
#include "armillary/kernel/cpu/cpu_flags.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#include <system_error>

namespace armillary::kernel::cpu {
namespace {

#if defined(__x86_64__)
bool has_bit(std::uint64_t bits, int bit) {
  return (bits >> bit & 1U) != 0;
}

/// XCR0: the registers that the operating system saves for a thread; 0 if it cannot be read.
std::uint64_t saved_state() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  // XGETBV faults unless the operating system has enabled it (CPUID leaf 1, OSXSAVE).
  constexpr int kOsXsave = 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !has_bit(c, kOsXsave)) return 0;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32U | low;
}

CpuFlags read_flags() {
  CpuFlags flags;
  flags.avx2 = __builtin_cpu_supports("avx2") != 0;
  flags.fma = __builtin_cpu_supports("fma") != 0;
  flags.avx512f = __builtin_cpu_supports("avx512f") != 0;
  flags.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  flags.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  flags.avx512_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  unsigned a = 0, b = 0, c = 0, d = 0;
  // CPUID leaf 7: the compiler (g++ 12) has no names for the AMX flags.
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    flags.amx_bf16 = has_bit(d, 22);
    flags.amx_tile = has_bit(d, 24);
  }
  const std::uint64_t saved = saved_state();
  flags.tiles_enabled = has_bit(saved, 17) && has_bit(saved, 18);
  return flags;
}

/// Requests permission to use tile data for all threads of the process. Returns 0 or errno.
int ask_for_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
}
#else
CpuFlags read_flags() {
  return {};
}
int ask_for_tiles() {
  return 0;
}
#endif

#if defined(__aarch64__) && defined(__linux__)
bool arm_has_bf16() {
  constexpr unsigned long kBf16 = 1UL << 14U;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
}
#else
bool arm_has_bf16() {
  return false;
}
#endif

/// Flags of this CPU, read once.
const CpuFlags& flags_here() {
  static const CpuFlags flags = read_flags();
  return flags;
}

}  // namespace

std::string missing_for(std::string_view name, const CpuFlags& flags) {
  // Each set needs the flags of the sets below it.
  const bool amx = name == "amx";
  const bool bf16_dot = amx || name == "avx512_bf16";
  const bool avx512 = bf16_dot || name == "avx512";
  // Collects every missing flag, not only the first.
  std::string missing;
  const auto require = [&](bool required, bool there, std::string_view flag) {
    if (required && !there) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", flag);
  };
  require(avx512 || name == "avx2", flags.avx2, "avx2");
  require(avx512 || name == "avx2", flags.fma, "fma");
  require(avx512, flags.avx512f, "avx512f");
  require(bf16_dot, flags.avx512bw, "avx512bw");
  require(amx, flags.avx512dq, "avx512dq");
  require(bf16_dot, flags.avx512_bf16, "avx512_bf16");
  require(amx, flags.amx_tile, "amx_tile");
  require(amx, flags.amx_bf16, "amx_bf16");
  if (!missing.empty()) return "the CPU has no " + missing;
  // The CPU has it all; the operating system may still refuse tiles.
  if (amx && !flags.tiles_enabled) {
    return "the CPU reports AMX but the operating system does not save its tiles: XCR0 lacks bits "
           "17 and 18";
  }
  if (amx && flags.tiles_refused != 0) {
    return fmt::format(
        "the CPU reports AMX but the operating system refuses it: arch_prctl(ARCH_REQ_XCOMP_PERM, "
        "18): {}",
        std::generic_category().message(flags.tiles_refused));
  }
  return {};
}

std::string missing_for(std::string_view name) {
  CpuFlags flags = flags_here();
  // Ask for tiles only if nothing else is missing: the request has a cost for the process.
  if (name == "amx" && missing_for(name, flags).empty()) {
    static const int refused = ask_for_tiles();
    flags.tiles_refused = refused;
  }
  return missing_for(name, flags);
}

bool amx_permitted() {
  static const bool permitted = missing_for("amx").empty();
  return permitted;
}

bool multiplies_bf16() {
  const CpuFlags& cpu = flags_here();
  return cpu.avx512_bf16 || (cpu.amx_bf16 && cpu.tiles_enabled) || arm_has_bf16();
}

}  // namespace armillary::kernel::cpu
