#include "armillary/kernel/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "armillary/core/error.h"

namespace armillary::kernel::cpu {

#if defined(__x86_64__)
namespace amx {
extern const Tiles kTiles;
}
namespace avx512_bf16 {
extern const Tiles kTiles;
}
namespace avx512 {
extern const Tiles kTiles;
}
namespace avx2 {
extern const Tiles kTiles;
}
#endif
namespace portable {
extern const Tiles kTiles;
}
namespace emulated {
extern const Tiles kTiles;
}
namespace emulated_amx {
extern const Tiles kTiles;
}

namespace {

constexpr const Tiles* kAll[] = {
#if defined(__x86_64__)
    &amx::kTiles, &avx512_bf16::kTiles, &avx512::kTiles, &avx2::kTiles,
#endif
    &portable::kTiles, &emulated::kTiles, &emulated_amx::kTiles};

std::string names_here() {
  std::string names;
  for (const Tiles* isa : kAll) {
    if (!runs_here(*isa)) continue;
    if (!names.empty()) names += ", ";
    names += isa->name;
  }
  return names;
}

}  // namespace

std::span<const Tiles* const> all_isas() {
  return kAll;
}

bool runs_here(const Tiles& isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0;
  if (&isa == &amx::kTiles) return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  if (&isa == &avx512_bf16::kTiles) {
    return avx512 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512bf16") != 0;
  }
  if (&isa == &avx512::kTiles) return avx512;
  if (&isa == &avx2::kTiles) return avx2;
#endif
  return &isa == &portable::kTiles || &isa == &emulated::kTiles ||
         &isa == &emulated_amx::kTiles;
}

const Tiles& isa_named(std::string_view name) {
  for (const Tiles* isa : kAll) {
    if (isa->name != name) continue;
    if (!runs_here(*isa)) {
      fail<InvalidArgument>("ARMILLARY_ISA: {}, which this CPU has not; one of {} is required",
                            name, names_here());
    }
    return *isa;
  }
  fail<InvalidArgument>("ARMILLARY_ISA: {}; one of {} is required", name, names_here());
}

const Tiles& current_isa() {
  static const Tiles& isa = []() -> const Tiles& {
    const char* const forced = std::getenv("ARMILLARY_ISA");
    if (forced != nullptr && *forced != '\0') return isa_named(forced);
    for (const Tiles* best : kAll) {
      if (runs_here(*best)) return *best;
    }
    return portable::kTiles;
  }();
  return isa;
}

}  // namespace armillary::kernel::cpu
