// cases.h: the grid of plans whose mutants are judged: worlds x strategies x shapes x layouts x
// passes.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/options.h"
#include "armillary/plan/testing/every_strategy.h"
#include "tests/seed.h"

namespace armillary::mutation {

struct Case {
  plan::Problem problem;
  plan::Strategy strategy;
  plan::Pass pass = plan::Pass::Forward;
  bool lowered = false;
  std::string name;  ///< All of it in words, to make the case again.

  plan::Plan strategy_plan() const { return make_plan(problem, strategy, pass); }
  plan::Plan plan() const { return lowered ? lower(strategy_plan()) : strategy_plan(); }
};

struct CaseShape {
  plan::Lengths lengths;
  const char* mask;
  int heads;
  int kv_heads;
  bool return_lse = false;
};

inline constexpr std::array<CaseShape, 8> kShapes{
    {{{.q = 26, .kv = 26}, "full", 8, 2},
     {{.q = 27, .kv = 27}, "causal", 6, 3, true},
     {{.q = 48, .kv = 48}, "window:left=3,right=2", 4, 4},
     {{.q = 9, .kv = 20}, "prefix:5,align=end", 3, 1, true},
     {{.q = 24, .kv = 24}, "documents:7,1,12,4", 8, 2, true},
     {{.q = 25, .kv = 25}, "block_causal:6", 4, 2},
     {{.q = 20, .kv = 9}, "bands:0-6/0-9/..;6-15/2-7/-9..-3;15-20/4-9/-14..-8", 2, 1, true},
     {{.q = 5, .kv = 5}, "causal", 5, 5}}};

inline constexpr std::array kLayouts{"contiguous", "zigzag", "striped:2", "balanced"};

/// A strategy by name, and over how many ranks it spreads heads.
struct StrategySpread {
  int world;
  std::string strategy;
  int u;
};

inline std::vector<StrategySpread> spreads(int world) {
  std::vector<StrategySpread> all;
  for (const std::string& name : plan::every_strategy({.world = world, .heads = world})) {
    const plan::Strategy strategy = plan::parse_strategy(name);
    int ways = strategy.name == "ulysses" ? world : 1;
    if (strategy.name == "usp") ways = strategy.as<plan::UspOptions>().u;
    if (strategy.name == "grid") ways = strategy.as<plan::GridOptions>().u;
    all.push_back({world, name, ways});
  }
  return all;
}

inline Case make_case(const StrategySpread& spread, const CaseShape& shape, const char* layout,
                      plan::Pass pass, bool lowered) {
  const int times = (spread.u + shape.heads - 1) / shape.heads;  // At least one head per rank.
  plan::Problem problem{.world = spread.world,
                        .heads = shape.heads * times,
                        .kv_heads = shape.kv_heads,
                        .head_dim = 2,
                        .value_dim = 3,
                        .dtype = plan::Dtype::Bf16,
                        .mask = plan::parse_mask(shape.mask, shape.lengths),
                        .layout = plan::parse_layout(layout),
                        .return_lse = shape.return_lse,
                        .transfer_dtype = shape.return_lse ? plan::TransferDtype::Input
                                                           : plan::TransferDtype::Accumulator};
  std::string name =
      fmt::format("world {}, {}, {} of {} x {}, heads {}/{}, {}, {}{}", spread.world,
                  spread.strategy, shape.mask, shape.lengths.q, shape.lengths.kv, problem.heads,
                  problem.kv_heads, layout, to_string(pass), lowered ? ", lowered" : "");
  return {std::move(problem), plan::parse_strategy(spread.strategy), pass, lowered,
          std::move(name)};
}

/// All legal cases of a world: every strategy, with masks of every kind, up to 48 tokens, also
/// fewer tokens than ranks, MHA to MQA, heads that do not divide evenly; every pass, as the
/// strategy makes it and lowered. Every layout with every
/// shape up to 4 ranks; above, one layout per shape, strategy and pass.
inline std::vector<Case> cases(int world) {
  std::vector<Case> examples;
  const std::vector<StrategySpread> all = spreads(world);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t s = 0; s < kShapes.size(); ++s) {
      for (std::size_t l = 0; l < kLayouts.size(); ++l) {
        std::size_t place = 0;
        for (const plan::Pass pass :
             {plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay}) {
          for (const bool lowered : {false, true}) {
            const std::size_t number = i + s + s / kLayouts.size() + place++;
            if (world > 3 && number % kLayouts.size() != l) continue;
            examples.push_back(make_case(all[i], kShapes[s], kLayouts[l], pass, lowered));
          }
        }
      }
    }
  }
  return examples;
}

}  // namespace armillary::mutation
