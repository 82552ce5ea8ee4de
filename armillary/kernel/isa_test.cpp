// isa_test.cpp: the choice of an instruction set, and the reasons given for the sets that are not
// chosen. Processors are made up; only the last tests ask the one at hand.
#include "armillary/kernel/cpu/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/peak.h"

namespace armillary::kernel::cpu {
namespace {

using testing::Eq;
using testing::HasSubstr;
using testing::IsEmpty;

CpuFlags sapphire_rapids() {
  return {.avx2 = true,
          .fma = true,
          .avx512f = true,
          .avx512bw = true,
          .avx512dq = true,
          .avx512_bf16 = true,
          .amx_tile = true,
          .amx_bf16 = true,
          .tiles_enabled = true};
}

TEST(CpuFlags, ThatAreThereRunEverySet) {
  for (const std::string name : {"amx", "avx512_bf16", "avx512", "avx2", "portable", "emulated"}) {
    EXPECT_THAT(missing_for(name, sapphire_rapids()), IsEmpty()) << name;
  }
}

TEST(CpuFlags, ThatAreNotThereAreNamed) {
  for (const std::string name : {"portable", "emulated"}) {
    EXPECT_THAT(missing_for(name, {}), IsEmpty()) << name;
  }
  EXPECT_EQ(missing_for("avx2", {.avx2 = true}), "the CPU has no fma");
  const CpuFlags haswell{.avx2 = true, .fma = true};
  EXPECT_THAT(missing_for("avx2", haswell), IsEmpty());
  EXPECT_EQ(missing_for("avx512", haswell), "the CPU has no avx512f");
  EXPECT_EQ(missing_for("avx512_bf16", haswell), "the CPU has no avx512f, avx512bw, avx512_bf16");
  EXPECT_EQ(missing_for("amx", haswell),
            "the CPU has no avx512f, avx512bw, avx512dq, avx512_bf16, amx_tile, amx_bf16");
  CpuFlags zen4 = sapphire_rapids();
  zen4.amx_tile = zen4.amx_bf16 = zen4.tiles_enabled = false;
  EXPECT_THAT(missing_for("avx512_bf16", zen4), IsEmpty());
  EXPECT_EQ(missing_for("amx", zen4), "the CPU has no amx_tile, amx_bf16");
}

TEST(CpuFlags, TilesThatTheOperatingSystemRefuses) {
  CpuFlags flags = sapphire_rapids();
  flags.tiles_refused = EPERM;
  EXPECT_EQ(missing_for("amx", flags),
            "the CPU reports AMX but the operating system refuses it: "
            "arch_prctl(ARCH_REQ_XCOMP_PERM, 18): Operation not permitted");
  EXPECT_THAT(missing_for("avx512_bf16", flags), IsEmpty());
  flags = sapphire_rapids();
  flags.tiles_enabled = false;
  EXPECT_EQ(missing_for("amx", flags),
            "the CPU reports AMX but the operating system does not save its tiles: XCR0 lacks bits "
            "17 and 18");
}

TEST(CpuFlags, OfThisProcessStayTheSame) {
  EXPECT_EQ(amx_permitted(), missing_for("amx").empty());
  EXPECT_EQ(missing_for("amx"), missing_for("amx"));
}

struct ChoiceCase {
  std::string amx;          ///< reason why AMX is missing
  std::string avx512_bf16;  ///< reason why avx512_bf16 is missing
  std::string avx512;
  double fp32;
  double bf16;
  std::string taken;
};

std::vector<IsaFacts> facts_of(const ChoiceCase& example) {
  return {{.name = "amx", .missing = example.amx},
          {.name = "avx512_bf16",
           .missing = example.avx512_bf16,
           .fp32_gflops = example.fp32,
           .bf16_gflops = example.bf16},
          {.name = "avx512", .missing = example.avx512},
          {.name = "avx2"},
          {.name = "portable"},
          {.name = "emulated"}};
}

TEST(ChooseIsa, ByRatesAndWhatRuns) {
  const std::string no = "the CPU has no such flag";
  const ChoiceCase cases[] = {
      {"", "", "", 0, 0, "amx"},
      {"", "", "", 217, 107, "amx"},
      {no, "", "", 217, 107, "avx512"},       // Sapphire Rapids without tiles
      {no, "", "", 117, 233, "avx512_bf16"},  // Zen 4
      {no, "", "", 217, 217, "avx512_bf16"},
      {no, "", "", 217, 216.9, "avx512"},
      {no, "", "", 0, 0, "avx512_bf16"},  // not measured
      {no, no, "", 0, 0, "avx512"},
      {no, no, no, 0, 0, "avx2"},
  };
  for (const ChoiceCase& example : cases) {
    const std::vector<IsaFacts> facts = facts_of(example);
    EXPECT_EQ(facts[choose_isa(facts)].name, example.taken)
        << example.amx << "; " << example.avx512_bf16 << "; " << example.fp32 << " "
        << example.bf16;
  }
}

TEST(ExplainIsa, GivesTheReasonOfEachSet) {
  std::vector<IsaFacts> facts = facts_of({"no amx_tile", "", "", 217.4, 107.3, "avx512"});
  facts[2].fp32_gflops = facts[2].bf16_gflops = 217.4;
  const std::vector<IsaStatus> statuses = explain(facts, 2, false);
  ASSERT_EQ(statuses.size(), facts.size());
  const auto why = [&](int set, Element element) { return statuses[set].uses[index_of(element)]; };
  EXPECT_EQ(statuses[0].missing, "no amx_tile");
  EXPECT_EQ(why(0, Element::Float32).why, "no amx_tile");
  EXPECT_EQ(why(1, Element::BFloat16).why,
            "bf16 is slower than fp32: 107 GFLOP/s in bf16, 217 in fp32; its fp32 is that of "
            "avx512");
  EXPECT_EQ(why(1, Element::BFloat16).gflops, 107.3);
  EXPECT_EQ(why(1, Element::Float32).gflops, 217.4);
  EXPECT_EQ(why(1, Element::Float16).gflops, 217.4);
  EXPECT_EQ(why(2, Element::Float32).why, "the best set that runs here");
  EXPECT_EQ(why(2, Element::BFloat16).why,
            "the best set that runs here; bf16 is multiplied as fp32");
  EXPECT_EQ(why(2, Element::Float16).why,
            "the best set that runs here; fp16 is multiplied as fp32");
  EXPECT_EQ(why(3, Element::Float32).why, "avx512 is better");
  EXPECT_THAT(why(5, Element::Float32).why, HasSubstr("for tests"));
  for (int set = 0; set < 6; ++set) {
    for (const IsaUse& use : statuses[set].uses) EXPECT_EQ(use.taken, set == 2) << set;
  }
}

TEST(ExplainIsa, NamesPairsAndTiles) {
  std::vector<IsaFacts> facts = facts_of({"", "", "", 117, 233, "amx"});
  facts[0].fp32_gflops = 217;
  facts[0].bf16_gflops = 2830;
  const auto bf16 = [](const IsaStatus& status) {
    return status.uses[index_of(Element::BFloat16)].why;
  };
  EXPECT_EQ(bf16(explain(facts, 0, false)[0]),
            "the best set that runs here; 2830 GFLOP/s in bf16, 217 in fp32");
  EXPECT_EQ(bf16(explain(facts, 0, false)[1]), "amx is better");
  EXPECT_EQ(bf16(explain(facts, 1, true)[1]),
            "ARMILLARY_ISA names it; 233 GFLOP/s in bf16, 117 in fp32");
  EXPECT_EQ(bf16(explain(facts, 1, true)[0]), "ARMILLARY_ISA names avx512_bf16");
}

TEST(ReportIsas, IsOfEverySet) {
  const std::vector<IsaStatus> statuses = isa_statuses();
  ASSERT_EQ(statuses.size(), all_isas().size());
  int taken = 0;
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    EXPECT_EQ(statuses[i].name, all_isas()[i]->name);
    EXPECT_EQ(statuses[i].missing.empty(), runs_here(*all_isas()[i]));
    const bool measured = statuses[i].missing.empty() && !statuses[i].name.starts_with("emulated");
    for (const IsaUse& use : statuses[i].uses) {
      EXPECT_EQ(use.gflops > 0, measured) << statuses[i].name;
      EXPECT_NE(use.why, "");
      EXPECT_EQ(use.taken, all_isas()[i] == &current_isa());
      taken += use.taken ? 1 : 0;
    }
  }
  EXPECT_EQ(taken, kElements);
}

TEST(BurnUnits, ThatRunHereAreMeasured) {
  for (const BurnUnit& unit : burn_units()) {
    if (!missing_for(unit.isa).empty()) continue;
    EXPECT_GT(measure_gflops(unit, 0), 0) << unit.isa;
    const BurnUnit* const one[] = {&unit};
    const double probed = probe_gflops(one)[0];
    EXPECT_GT(probed, 0) << unit.isa;
    EXPECT_EQ(probe_gflops(one)[0], probed) << unit.isa;
  }
}

TEST(BurnUnits, OfASetAreItsOwnAndThoseBelow) {
  const auto names = [](std::string_view isa, Element element) {
    std::string joined;
    for (const BurnUnit* unit : units_up_to(isa, element)) joined += std::string(unit->isa) + " ";
    return joined;
  };
  EXPECT_EQ(names("portable", Element::BFloat16), "portable ");
  if (missing_for("avx512_bf16").empty()) {
    EXPECT_EQ(names("avx512_bf16", Element::BFloat16), "avx512_bf16 avx512 ");
    EXPECT_EQ(names("avx512_bf16", Element::Float32), "avx512 ");
    EXPECT_EQ(names("avx512", Element::BFloat16), "avx512 ");
  }
  if (amx_permitted()) {
    EXPECT_EQ(names("amx", Element::BFloat16), "amx amx ");
    EXPECT_TRUE(units_up_to("amx", Element::BFloat16).front()->bf16);
    EXPECT_EQ(names("amx", Element::Float32), "amx ");
    EXPECT_FALSE(units_up_to("amx", Element::Float32).front()->bf16);
  }
  EXPECT_THROW(units_up_to("emulated", Element::Float32), InvalidArgument);
}

#if defined(__x86_64__)
/// Other users of AMX on this thread configure tiles once and rely on them.
TEST(BurnUnits, LeaveTheTilesOfTheThreadAsTheyWere) {
  if (!amx_permitted()) GTEST_SKIP() << "[SKIP] " << missing_for("amx");
  const auto configured = [] {
    alignas(64) std::uint8_t bytes[64];
    asm volatile("sttilecfg %0" : "=m"(bytes));
    return std::vector<std::uint8_t>(bytes, bytes + 64);
  };
  const BurnUnit& amx = burn_units().front();
  ASSERT_EQ(amx.isa, "amx");
  EXPECT_THAT(configured(), testing::Each(Eq(0)));
  amx.burn(1);
  EXPECT_THAT(configured(), testing::Each(Eq(0)));
  alignas(64) std::uint8_t mine[64] = {1};
  mine[16] = 32;  // bytes of a row of tile 0
  mine[48] = 7;   // its rows
  asm volatile("ldtilecfg %0" ::"m"(mine));
  amx.burn(1);
  const std::vector<std::uint8_t> after = configured();
  asm volatile("tilerelease");
  EXPECT_THAT(after, testing::ElementsAreArray(mine));
}
#endif

}  // namespace
}  // namespace armillary::kernel::cpu
