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
    &amx::kTiles,      &avx512_bf16::kTiles, &avx512::kTiles,      &avx2::kTiles,
#endif
    &portable::kTiles, &emulated::kTiles,    &emulated_amx::kTiles};

std::vector<std::string> names_here() {
  std::vector<std::string> names;
  for (const Tiles* isa : kAll) {
    if (runs_here(*isa)) names.emplace_back(isa->name);
  }
  return names;
}

const char* forced_name() {
  const char* const forced = std::getenv("ARMILLARY_ISA");
  return forced != nullptr && *forced != '\0' ? forced : nullptr;
}

std::vector<IsaFacts> facts_here() {
  std::vector<IsaFacts> facts;
  for (const Tiles* isa : kAll)
    facts.push_back({.name = isa->name, .missing = missing_for(isa->name)});
  return facts;
}

/// Rates of the instructions that the set itself multiplies fp32 and bf16 with.
void probe(IsaFacts& set) {
  const std::vector<const BurnUnit*> units = units_up_to(set.name, Element::BFloat16);
  const auto own = std::find_if(units.begin(), units.end(),
                                [&](const BurnUnit* unit) { return unit->isa == set.name; });
  const BurnUnit* const both[] = {*own, units.back()};
  const std::vector<double> gflops = probe_gflops(both);
  set.bf16_gflops = gflops[0];
  set.fp32_gflops = gflops[1];
}

const Tiles& choose_here() {
  std::vector<IsaFacts> facts = facts_here();
  const auto best = std::find_if(facts.begin(), facts.end(),
                                 [](const IsaFacts& set) { return set.missing.empty(); });
  if (best->name == "avx512_bf16") probe(*best);
  return *kAll[choose_isa(facts)];
}

}  // namespace

std::span<const Tiles* const> all_isas() {
  return kAll;
}

bool runs_here(const Tiles& isa) {
  return missing_for(isa.name).empty();
}

const Tiles& isa_named(std::string_view name) {
  const std::vector<std::string> here = names_here();
  for (const Tiles* isa : kAll) {
    if (isa->name != name) continue;
    const std::string missing = missing_for(name);
    if (missing.empty()) return *isa;
    fail<InvalidArgument>("ARMILLARY_ISA: {}: {}; {} is required", name, missing, list_names(here));
  }
  const std::string nearest = nearest_name(name, here);
  fail<InvalidArgument>("ARMILLARY_ISA: {}; {} is required{}", name, list_names(here),
                        nearest.empty() ? "" : "; nearest: " + nearest);
}

const Tiles& current_isa() {
  static const Tiles& isa = forced_name() != nullptr ? isa_named(forced_name()) : choose_here();
  return isa;
}

std::vector<IsaReport> report_isas() {
  const Tiles& taken = current_isa();
  std::vector<IsaFacts> facts = facts_here();
  for (IsaFacts& set : facts) {
    if (set.missing.empty() && !set.name.starts_with("emulated")) probe(set);
  }
  const auto index = std::find(std::begin(kAll), std::end(kAll), &taken) - std::begin(kAll);
  return explain(facts, static_cast<std::size_t>(index), forced_name() != nullptr);
}

}  // namespace armillary::kernel::cpu
