// The choice between sets and the sentences that explain it in `armillary doctor`. Pure functions
// of measured facts: nothing here asks the CPU.
#include "armillary/kernel/cpu/isa_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::kernel::cpu {
namespace {

/// False as long as the rates were not measured.
bool slower_in_bf16(const IsaFacts& set) {
  return set.bf16_gflops != 0 && set.bf16_gflops < set.fp32_gflops;
}

/// Whether bf16 is multiplied as such, and not widened to fp32.
bool has_own_bf16(const IsaFacts& set) {
  return set.name == "amx" || set.name == "avx512_bf16";
}

std::string_view name_of(Element element) {
  constexpr std::string_view kNames[kElements] = {"fp32", "bf16", "fp16"};
  return kNames[index_of(element)];
}

/// Example: "160 GFLOP/s in bf16, 90 in fp32".
std::string both_rates(const IsaFacts& set) {
  return fmt::format("{:.0f} GFLOP/s in bf16, {:.0f} in fp32", set.bf16_gflops, set.fp32_gflops);
}

/// Why the chosen set is used for a dtype, and how it multiplies it.
std::string reason_for(const IsaFacts& set, Element element, bool forced) {
  std::string by = forced ? "ARMILLARY_ISA names it" : "the best set that runs here";
  if (element == Element::Float32) {
    return set.name == "amx" ? by + "; fp32 is multiplied as three parts of bf16" : by;
  }
  if (element == Element::BFloat16 && has_own_bf16(set)) {
    return fmt::format("{}; {}", by, both_rates(set));
  }
  return fmt::format("{}; {} is multiplied as fp32", by, name_of(element));
}

/// Why another set is not used: missing, overruled, emulated, slow in bf16, or just not the best.
std::string reason_against(const IsaFacts& set, const IsaFacts& taken, bool forced) {
  if (!set.missing.empty()) return set.missing;
  if (forced) return fmt::format("ARMILLARY_ISA names {}", taken.name);
  if (set.name.starts_with("emulated")) return "slow: for tests on CPUs without its instructions";
  if (slower_in_bf16(set) && taken.fp32_gflops <= set.fp32_gflops) {
    return fmt::format("bf16 is slower than fp32: {}; its fp32 is that of {}", both_rates(set),
                       taken.name);
  }
  return fmt::format("{} is better", taken.name);
}

}  // namespace

std::size_t choose_isa(std::span<const IsaFacts> sets) {
  const auto taken = std::find_if(sets.begin(), sets.end(), [](const IsaFacts& set) {
    return set.missing.empty() && !slower_in_bf16(set);
  });
  ARMILLARY_CHECK(taken != sets.end());
  return static_cast<std::size_t>(taken - sets.begin());
}

std::vector<IsaStatus> explain(std::span<const IsaFacts> sets, std::size_t taken, bool forced) {
  // One status for each set, one use for each dtype.
  std::vector<IsaStatus> statuses;
  for (const IsaFacts& set : sets) {
    IsaStatus status{.name = set.name, .missing = set.missing, .uses = {}};
    for (const Element element : {Element::Float32, Element::BFloat16, Element::Float16}) {
      const bool is_taken = &set == &sets[taken];
      status.uses[index_of(element)] = {
          .gflops = element == Element::BFloat16 ? set.bf16_gflops : set.fp32_gflops,
          .taken = is_taken,
          .why = is_taken ? reason_for(set, element, forced)
                          : reason_against(set, sets[taken], forced)};
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace armillary::kernel::cpu
