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
#include <system_error>

namespace armillary::kernel::cpu {
namespace {

#if defined(__x86_64__)
bool has_bit(std::uint64_t bits, int bit) {
  return (bits >> bit & 1U) != 0;
}

/// XCR0: the registers that the operating system saves for a thread.
std::uint64_t saved_state() {
  unsigned a = 0, b = 0, c = 0, d = 0;
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
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {  // g++ 12 knows no name of them
    flags.amx_bf16 = has_bit(d, 22);
    flags.amx_tile = has_bit(d, 24);
  }
  const std::uint64_t saved = saved_state();
  flags.tiles_enabled = has_bit(saved, 17) && has_bit(saved, 18);
  return flags;
}

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

}  // namespace

std::string missing_for(std::string_view name, const CpuFlags& flags) {
  const bool amx = name == "amx";
  const bool pairs = amx || name == "avx512_bf16";
  const bool avx512 = pairs || name == "avx512";
  std::string missing;
  const auto require = [&](bool required, bool there, std::string_view flag) {
    if (required && !there) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", flag);
  };
  require(avx512 || name == "avx2", flags.avx2, "avx2");
  require(avx512 || name == "avx2", flags.fma, "fma");
  require(avx512, flags.avx512f, "avx512f");
  require(pairs, flags.avx512bw, "avx512bw");
  require(amx, flags.avx512dq, "avx512dq");
  require(pairs, flags.avx512_bf16, "avx512_bf16");
  require(amx, flags.amx_tile, "amx_tile");
  require(amx, flags.amx_bf16, "amx_bf16");
  if (!missing.empty()) return "the CPU has no " + missing;
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
  static const CpuFlags cpu = read_flags();
  CpuFlags flags = cpu;
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

}  // namespace armillary::kernel::cpu
