// The table of compiled sets and the choice between them. Each set is one source with flags of its
// own (avx2.cpp, amx.cpp, ..) that defines kIsaKernels in a namespace of its own. current_isa()
// chooses once per process: ARMILLARY_ISA, or else the best set that runs here, with a probe where
// only rates decide.
#include "armillary/kernel/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/kernel/cpu/peak.h"

namespace armillary::kernel::cpu {

#if defined(__x86_64__)
namespace amx {
extern const IsaKernels kIsaKernels;
}
namespace avx512_bf16 {
extern const IsaKernels kIsaKernels;
}
namespace avx512 {
extern const IsaKernels kIsaKernels;
}
namespace avx2 {
extern const IsaKernels kIsaKernels;
}
#endif
namespace portable {
extern const IsaKernels kIsaKernels;
}
// Weak: null in a program that does not link armillary_kernel_emulated.
namespace emulated {
extern const IsaKernels kIsaKernels __attribute__((weak));
}
namespace emulated_amx {
extern const IsaKernels kIsaKernels __attribute__((weak));
}

namespace {

// Best first; the emulated sets last, since choose_isa() takes the first that qualifies.
const std::vector<const IsaKernels*>& all_sets() {
  static const std::vector<const IsaKernels*> sets = [] {
    std::vector<const IsaKernels*> all {
#if defined(__x86_64__) && !defined(ARMILLARY_WITHOUT_WIDE_SETS)
      &amx::kIsaKernels, &avx512_bf16::kIsaKernels, &avx512::kIsaKernels,
#endif
#if defined(__x86_64__)
          &avx2::kIsaKernels,
#endif
          &portable::kIsaKernels,
    };
    for (const IsaKernels* emulated : {&emulated::kIsaKernels, &emulated_amx::kIsaKernels}) {
      if (emulated != nullptr) all.push_back(emulated);
    }
    return all;
  }();
  return sets;
}

/// Names of the sets that run here, for error texts.
std::vector<std::string> names_here() {
  std::vector<std::string> names;
  for (const IsaKernels* isa : all_sets()) {
    if (runs_here(*isa)) names.emplace_back(isa->name);
  }
  return names;
}

/// Value of ARMILLARY_ISA; null if it is unset or empty.
const char* forced_name() {
  const char* const forced = std::getenv("ARMILLARY_ISA");
  return forced != nullptr && *forced != '\0' ? forced : nullptr;
}

std::vector<IsaFacts> facts_here() {
  std::vector<IsaFacts> facts;
  for (const IsaKernels* isa : all_sets())
    facts.push_back({.name = isa->name, .missing = missing_for(isa->name)});
  return facts;
}

/// Measures the instructions that the set itself multiplies bf16 and fp32 with.
void probe(IsaFacts& set) {
  // The unit of the set comes before those of lesser sets; the fp32 unit is the last.
  const std::vector<const BurnUnit*> units = units_up_to(set.name, Element::BFloat16);
  const auto own = std::find_if(units.begin(), units.end(),
                                [&](const BurnUnit* unit) { return unit->isa == set.name; });
  const BurnUnit* const both[] = {*own, units.back()};
  const std::vector<double> gflops = probe_gflops(both);
  set.bf16_gflops = gflops[0];
  set.fp32_gflops = gflops[1];
}

/// The choice without ARMILLARY_ISA.
const IsaKernels& choose_here() {
  std::vector<IsaFacts> facts = facts_here();
  const auto best = std::find_if(facts.begin(), facts.end(),
                                 [](const IsaFacts& set) { return set.missing.empty(); });
  // No other set has a bf16 instruction that could be slower than fp32.
  if (best->name == "avx512_bf16") probe(*best);
  return *all_sets()[choose_isa(facts)];
}

}  // namespace

std::span<const IsaKernels* const> all_isas() {
  return all_sets();
}

bool runs_here(const IsaKernels& isa) {
  return missing_for(isa.name).empty();
}

const IsaKernels& isa_named(std::string_view name) {
  const std::vector<std::string> here = names_here();
  for (const IsaKernels* isa : all_sets()) {
    if (isa->name != name) continue;
    const std::string missing = missing_for(name);
    if (missing.empty()) return *isa;
    fail<InvalidArgument>("ARMILLARY_ISA: {}: {}; {} is required", name, missing, list_names(here));
  }
  // The name is unknown.
  const std::string nearest = nearest_name(name, here);
  fail<InvalidArgument>("ARMILLARY_ISA: {}; {} is required{}", name, list_names(here),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

const IsaKernels& current_isa() {
  static const IsaKernels& isa =
      forced_name() != nullptr ? isa_named(forced_name()) : choose_here();
  return isa;
}

std::vector<IsaStatus> isa_statuses() {
  const IsaKernels& taken = current_isa();
  std::vector<IsaFacts> facts = facts_here();
  for (IsaFacts& set : facts) {
    // Emulated sets have no instruction of their own to measure.
    if (set.missing.empty() && !set.name.starts_with("emulated")) probe(set);
  }
  const std::vector<const IsaKernels*>& sets = all_sets();
  const auto index = std::find(sets.begin(), sets.end(), &taken) - sets.begin();
  return explain(facts, static_cast<std::size_t>(index), forced_name() != nullptr);
}

}  // namespace armillary::kernel::cpu
