// strategy_test.cpp: names and keys of strategies as text, the problems that each refuses with the
// nearest legal one, and planners: one program per rank, shared by threads.
#include "armillary/plan/strategies/strategy.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/options.h"

namespace armillary::plan {
namespace {

using testing::ThrowsMessage;

Problem problem_of(int world, int heads = 8) {
  return {.world = world,
          .heads = heads,
          .kv_heads = 2,
          .head_dim = 4,
          .value_dim = 4,
          .mask = causal_mask({37, 37}, Align::Start),
          .layout = parse_layout("zigzag")};
}

TEST(ParseStrategy, ReadsWhatItPrints) {
  for (const std::string text :
       {"ring", "ring:backward=q", "allgather", "allgather:slices=2", "ulysses", "usp:u=4",
        "usp:backward=cheaper,u=2", "usp:inner=ring,u=1", "double_ring:window=2",
        "bidirectional_ring", "tokenring", "tokenring:nodes=2", "attention2d:rows=2",
        "attention2d:overlap=true,rows=2", "startrail:c=2", "startrail:c=2,placement=p2p_intra",
        "grid:col=double_ring,nest=rk-rq-u,rk=1,row=ring,rq=4,u=1,window=2", "auto:traffic"}) {
    EXPECT_EQ(to_string(parse_strategy(text)), text);
    EXPECT_EQ(parse_strategy(to_string(parse_strategy(text))), parse_strategy(text)) << text;
  }
  EXPECT_EQ(parse_strategy("ring"), (Strategy{.name = "ring"}));
  EXPECT_EQ(parse_strategy("usp:u=4"), (Strategy{"usp", UspOptions{.u = 4}}));
}

TEST(ParseStrategy, GivesTypedOptions) {
  const auto usp = parse_strategy("usp:u=2,inner=ring,qkv=packed,backward=q").as<UspOptions>();
  EXPECT_EQ(usp.u, 2);
  EXPECT_EQ(usp.inner, UspInner::Ring);
  EXPECT_TRUE(usp.packed);
  EXPECT_EQ(usp.backward, BackwardSide::Q);
  const auto grid = parse_strategy("grid:u=1,rq=4,rk=2,col=double_ring,window=2,nest=rq-u-rk");
  EXPECT_EQ(grid.as<GridOptions>().column, Movement::DoubleRing);
  EXPECT_EQ(grid.as<GridOptions>().window, 2);
  EXPECT_EQ(grid.as<GridOptions>().nesting,
            (std::array{GridAxis::Queries, GridAxis::Heads, GridAxis::Keys}));
  EXPECT_EQ(Strategy().as<RingOptions>().backward, BackwardSide::Kv);
}

TEST(ParseStrategy, LeavesOutWhatIsTheDefault) {
  for (const auto& [text, canonical] : std::vector<std::pair<std::string, std::string>>{
           {"ring:backward=kv", "ring"},
           {"allgather:slices=1", "allgather"},
           {"usp:backward=kv,inner=ulysses,qkv=separate,u=1", "usp:u=1"},
           {"tokenring:inner=tokenring,nodes=1,tiles=walk", "tokenring"},
           {"attention2d:overlap=false,rows=2", "attention2d:rows=2"},
           {"startrail:placement=collect_intra,c=2", "startrail:c=2"},
           {"grid:u=1,rq=2,rk=2,row=gather,col=ring,nest=u-rk-rq,backward=cheaper",
            "grid:rk=2,rq=2,u=1"}}) {
    EXPECT_EQ(to_string(parse_strategy(text)), canonical);
    EXPECT_EQ(parse_strategy(text), parse_strategy(canonical));
  }
}

TEST(Strategy, RefusesOptionsThatNoTextGives) {
  const auto refused = [](const Strategy& strategy, const std::string& error) {
    EXPECT_THAT([&] { check_legal(problem_of(4), strategy); },
                ThrowsMessage<InvalidArgument>(error));
    EXPECT_THAT([&] { to_string(strategy); }, ThrowsMessage<InvalidArgument>(error));
  };
  const std::string others = "strategy: options of another strategy; its own or none are required";
  refused({"ring", UspOptions{.u = 2}}, others);
  refused({"bidirectional_ring", RingOptions{}}, others);
  refused({"usp", UspOptions{.u = -2}},
          "strategy: u=-2 given; a whole number of at least 1 is required");
  refused({"allgather", AllgatherOptions{.slices = 0}},
          "strategy: slices=0 given; a whole number of at least 1 is required");
}

TEST(ParseStrategy, RefusesWhatItDoesNotUnderstand) {
  const std::string names =
      "one of ring, allgather, ulysses, usp, double_ring, bidirectional_ring, tokenring, "
      "attention2d, startrail, grid or auto";
  const std::string form = "write NAME:key=value,...";
  const std::string stale =
      " attends to K and V of an earlier denoising step, which are stale; exact attention is "
      "required; nearest: ";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"rng", "strategy: unknown name 'rng'; " + names + "; nearest: ring"},
      {"all-gather", "strategy: unknown name 'all-gather'; " + names + "; nearest: allgather"},
      {"distrifusion", "strategy: 'distrifusion'" + stale + "allgather"},
      {"Pipe-Fusion:patches=4", "strategy: 'Pipe-Fusion'" + stale + "ring"},
      {"async_diff", "strategy: 'async_diff'" + stale + "ring"},
      {"Ulysses", "strategy: unknown name 'Ulysses'; " + names + "; nearest: ulysses"},
      {"", "strategy: unknown name ''; " + names},
      {"flash_attention_with_a_long_name",
       "strategy: unknown name 'flash_attention_with_a_long_name'; " + names},
      {"usp",
       "strategy: usp needs the key 'u'; write "
       "usp:u=U[,inner=ulysses|ring][,qkv=separate|packed][,backward=kv|q|cheaper]"},
      {"usp:v=2", "strategy: usp was given the key 'v'; its keys are u, inner, qkv or backward"},
      {"usp:u=2,v=2",
       "strategy: usp was given the key 'v'; its keys are u, inner, qkv or backward"},
      {"ulysses:u=2", "strategy: ulysses was given the key 'u'; its keys are qkv"},
      {"bidirectional_ring:u=2",
       "strategy: bidirectional_ring was given the key 'u'; it takes no keys"},
      {"usp:u=2,u=2", "strategy: 'usp:u=2,u=2' gives the key 'u' twice; once is enough"},
      {"usp:u=2,u=4", "strategy: 'usp:u=2,u=4' gives the key 'u' twice; once is enough"},
      {"usp:", "strategy: 'usp:' ends with a colon; write NAME or NAME:key=value,..."},
      {"usp:u", "strategy usp: u: '' given; a whole number from 1 to 2147483647 is required"},
      {"usp:u=", "strategy: 'usp:u=' has the part 'u='; " + form},
      {"usp:=2", "strategy: 'usp:=2' has the part '=2'; " + form},
      {"usp:u=2,", "strategy: 'usp:u=2,' has the part ''; " + form},
      {"usp:2", "strategy: usp was given the key '2'; its keys are u, inner, qkv or backward"},
      {"usp:u=2,inner=rings",
       "strategy usp: inner: 'rings' is not known; ulysses or ring is required; nearest is 'ring'"},
      {"auto", "strategy: auto needs the key 'traffic'; write auto:traffic"},
      {"auto:traffic=2", "strategy auto: traffic: '2' given; it takes no value"}};
  for (const auto& [text, error] : cases) {
    EXPECT_THAT([&text = text] { parse_strategy(text); }, ThrowsMessage<InvalidArgument>(error))
        << text;
  }
}

void expect_strategy_refused(const Problem& problem, const std::string& strategy,
                             const std::string& error) {
  EXPECT_THAT([&] { Planner(problem, parse_strategy(strategy)); },
              ThrowsMessage<InvalidArgument>(error))
      << strategy;
  EXPECT_THAT([&] { make_plan(problem, parse_strategy(strategy), Pass::Forward); },
              ThrowsMessage<InvalidArgument>(error))
      << strategy;
}

TEST(Planner, RefusesKeysThatAreNoWaysOverHeads) {
  const std::string whole = " given; a whole number from 1 to 2147483647 is required";
  for (const std::string u : {"0", "-2", "two", "2.5", "99999999999999999999", "0x2", "+2"}) {
    expect_strategy_refused(problem_of(4), "usp:u=" + u,
                            fmt::format("strategy usp: u: '{}'{}", u, whole));
  }
}

TEST(Planner, RefusesWaysThatDoNotDivideTheWorld) {
  const auto refused = [](int world, int u, int nearest) {
    expect_strategy_refused(
        problem_of(world, 64), fmt::format("usp:u={}", u),
        fmt::format("usp: u={} with world {}; u must divide world; nearest: u={}", u, world,
                    nearest));
  };
  refused(4, 3, 2);
  refused(8, 7, 8);
  refused(12, 5, 4);
  refused(13, 5, 1);
  refused(13, 12, 13);
  refused(2, 2147483647, 2);
}

TEST(Planner, RefusesMoreWaysThanHeads) {
  const auto refused = [](int world, const std::string& strategy, int u, int nearest) {
    expect_strategy_refused(
        problem_of(world, 6), strategy,
        fmt::format("strategy: {} spreads heads {} ways but there are 6 query heads; u "
                    "must not exceed the heads; nearest: usp:u={}",
                    strategy, u, nearest));
  };
  refused(8, "ulysses", 8, 4);
  refused(13, "ulysses", 13, 1);
  refused(16, "usp:u=8", 8, 4);
  refused(12, "usp:u=12", 12, 6);
}

/// The nearest legal choice that a refusal names is legal.
TEST(Planner, OnlyADoubleRingHasAWindow) {
  expect_strategy_refused(problem_of(4), "grid:u=1,rq=4,rk=1,window=2",
                          "grid: window=2 with col=ring; only col=double_ring has a window");
  expect_strategy_refused(
      problem_of(4), "grid:u=1,rq=4,rk=1,col=double_ring",
      "grid: col=double_ring without window; one that divides rq=4 is required, such as window=2");
  expect_strategy_refused(problem_of(4), "grid:u=1,rq=4,rk=1,col=double_ring,window=3",
                          "grid: window=3 with rq=4; col=double_ring needs a window that divides "
                          "rq; nearest: window=2");
}

TEST(Planner, MoreSlicesThanKvHeadsAreAsManyAsThose) {
  const Problem problem = problem_of(4);
  const auto ops = [&](const char* strategy) {
    return make_plan(problem, parse_strategy(strategy), Pass::Backward).ranks[1].ops;
  };
  EXPECT_EQ(ops("allgather:slices=2147483647"), ops("allgather:slices=2"));
}

TEST(Planner, NearestChoicesAreLegal) {
  for (int world = 1; world <= 24; ++world) {
    for (int u = 1; u <= 24; ++u) {
      const Problem problem = problem_of(world, 6);
      std::string strategy = fmt::format("usp:u={}", u);
      for (int tries = 0; !strategy.empty(); ++tries) {
        ASSERT_LE(tries, 2) << "world " << world << ", u " << u << ": " << strategy;
        try {
          const Planner legal(problem, parse_strategy(strategy));
          strategy.clear();
        } catch (const InvalidArgument& error) {
          const std::string text = error.what();
          strategy = "usp:" + text.substr(text.rfind("u="));
        }
      }
    }
  }
}

TEST(Planner, RefusesProblemsAndWorldsThatCannotBePlanned) {
  Problem problem = problem_of(4);
  problem.kv_heads = 3;
  expect_strategy_refused(
      problem, "ring",
      "problem: 8 heads and 3 kv_heads given; heads that are a multiple of kv_heads are "
      "required; nearest kv_heads: 2 or 4");
  EXPECT_THAT(
      [] { Planner(problem_of(1 << 20), parse_strategy("ring")); },
      ThrowsMessage<InvalidArgument>("problem: world 1048576 given; 1 to 16384 is required"));
  EXPECT_THAT([] { make_plan(problem_of(1025), parse_strategy("ring"), Pass::Forward); },
              ThrowsMessage<InvalidArgument>(
                  "plan: world 1025; the programs of at most 1024 ranks can be made together"));
  EXPECT_THAT([] { Planner(problem_of(2), {.name = "usp"}); },
              ThrowsMessage<InvalidArgument>(
                  "strategy: usp needs the key 'u'; write "
                  "usp:u=U[,inner=ulysses|ring][,qkv=separate|packed][,backward=kv|q|cheaper]"))
      << "keys made by hand are checked too";
}

TEST(Planner, HasOneProgramPerRank) {
  const Planner planner(problem_of(3), parse_strategy("ring"));
  for (const Rank rank : {-1, 3, 2147483647}) {
    EXPECT_THAT([&] { planner.program(Pass::Forward, rank); },
                ThrowsMessage<InvalidArgument>(
                    fmt::format("planner: rank {}; world 3 has ranks 0 to 2", rank)));
  }
}

TEST(Planner, MakesTheProgramsOfThePlan) {
  for (const int world : {1, 2, 3, 4, 8}) {
    for (const std::string strategy : {"ring", "allgather", "ulysses", "usp:u=2"}) {
      if (strategy == "usp:u=2" && world % 2 != 0) continue;
      const Problem problem = problem_of(world);
      const Planner planner(problem, parse_strategy(strategy));
      EXPECT_EQ(planner.problem(), problem);
      EXPECT_EQ(planner.strategy(), parse_strategy(strategy));
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        SCOPED_TRACE(fmt::format("{} {}, world {}", strategy, to_string(pass), world));
        const Plan plan = make_plan(problem, parse_strategy(strategy), pass);
        EXPECT_EQ(plan.problem, problem);
        EXPECT_EQ(plan.strategy, strategy);
        EXPECT_EQ(plan.pass, pass);
        EXPECT_EQ(plan.blocks, planner.blocks());
        ASSERT_EQ(plan.ranks.size(), static_cast<std::size_t>(world));
        for (Rank rank = 0; rank < world; ++rank) {
          EXPECT_EQ(planner.program(pass, rank), plan.ranks[rank]) << "rank " << rank;
        }
      }
    }
  }
}

TEST(Planner, MayBeSharedByThreadsAndCopied) {
  const Problem problem = problem_of(8);
  const Plan plan = make_plan(problem, parse_strategy("usp:u=4"), Pass::Backward);
  std::vector<RankProgram> programs(8);
  {
    const Planner planner(problem, parse_strategy("usp:u=4"));
    std::vector<std::jthread> threads;
    threads.reserve(8);
    for (Rank rank = 0; rank < 8; ++rank) {
      threads.emplace_back(
          [rank, planner, &programs] { programs[rank] = planner.program(Pass::Backward, rank); });
    }
  }
  EXPECT_EQ(programs, plan.ranks);
}

TEST(Strategies, ListEveryNameWithItsKeysSummaryAndPaper) {
  std::vector<std::string> names;
  for (const StrategyInfo& info : strategies()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.summary.empty()) << info.name;
    EXPECT_FALSE(info.paper.empty()) << info.name;
    EXPECT_FALSE(info.bytes.empty()) << info.name;
    EXPECT_FALSE(info.differs.empty()) << info.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"ring", "allgather", "ulysses", "usp", "double_ring",
                                             "bidirectional_ring", "tokenring", "attention2d",
                                             "startrail", "grid", "auto"}));
}

/// Strategies refuse only problems that their arithmetic cannot solve; the list is printed.
TEST(Strategies, RefuseForAFewReasonsOnly) {
  const std::vector<std::string> reasons{"u must not exceed the heads", "u must divide world",
                                         "window must divide world",    "nodes must divide world",
                                         "rows must divide world",      "c^2 must divide world",
                                         "is required; nearest: u="};
  const std::vector<std::string> names{"ring",
                                       "allgather:slices=3",
                                       "ulysses",
                                       "usp:u=2",
                                       "usp:u=6",
                                       "double_ring:window=3",
                                       "bidirectional_ring",
                                       "tokenring",
                                       "tokenring:nodes=2",
                                       "attention2d:rows=3",
                                       "startrail:c=2",
                                       "startrail:c=3",
                                       "grid:u=2,rq=3,rk=2",
                                       "auto:traffic"};
  std::map<std::string, int> refusals;
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16}) {
    for (const auto& [heads, kv_heads] : {std::pair(4, 4), std::pair(6, 3), std::pair(8, 1)}) {
      for (const std::string mask :
           {"full", "causal", "window:left=3,right=0", "documents:2,9,0"}) {
        for (const std::string layout : {"contiguous", "zigzag", "striped:3", "balanced"}) {
          for (const std::string& strategy : names) {
            const Problem problem{.world = world,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .mask = parse_mask(mask, {11, 11}),
                                  .layout = parse_layout(layout)};
            try {
              check_legal(problem, parse_strategy(strategy));
            } catch (const InvalidArgument& error) {
              const auto reason =
                  std::find_if(reasons.begin(), reasons.end(), [&](const std::string& known) {
                    return std::string(error.what()).find(known) != std::string::npos;
                  });
              ASSERT_NE(reason, reasons.end()) << error.what();
              ++refusals[*reason];
            }
          }
        }
      }
    }
  }
  for (const auto& [reason, count] : refusals) fmt::print("{:>5} refused: {}\n", count, reason);
  EXPECT_EQ(refusals.size(), reasons.size());
}

TEST(Strategies, UsageShowsKeysAndTheirValues) {
  std::vector<std::string> lines;
  for (const StrategyInfo& info : strategies()) lines.push_back(usage(info));
  EXPECT_EQ(lines[0], "ring[:backward=kv|q|cheaper]");
  EXPECT_EQ(lines[3], "usp:u=U[,inner=ulysses|ring][,qkv=separate|packed][,backward=kv|q|cheaper]");
  EXPECT_EQ(lines[10], "auto:traffic");
}

}  // namespace
}  // namespace armillary::plan
