// step_checks.cpp: training steps of StarTrail, WallFacer and Attention2D against those of Ring.
// The papers' gains are of whole steps; steps of both differ in attention alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/lab/validate/check_builders.h"
#include "armillary/lab/validate/model_step.h"
#include "armillary/lab/validate/published_run.h"
#include "armillary/lab/validate/team_gain.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::validate {
namespace {

const std::vector<plan::Pass> kBoth{plan::Pass::Forward, plan::Pass::Backward};

/// A run with what is published about it.
struct TeamCase {
  TeamRun run;
  int best = 0;                ///< Published C; 0: not published.
  double least = 0, most = 0;  ///< Published gains of its kind.
  Outside known = {};          ///< The gain, if it is outside.
};

/// Published gains: the six of GPTs in both papers, the two of DiT in StarTrail's. Those on nodes
/// of eight A100 with 64K tokens are one of three (WallFacer, caption of figure 7).
constexpr double kLeastGpt = 1.199, kMostGpt = 1.771, kLeastDit = 1.414, kMostDit = 2.114;
constexpr double kLeastA100Of8 = 1.36;

constexpr const char* kOnePair =
    "one rate for a pair of ranks between nodes gives GPTs too much or DiT too little";
constexpr const char* kRingOnH100 =
    "not known; Ring alone sends between nodes in each step, over one NIC of eight";

/// Returns the runs of WallFacer, with the best C of each.
std::vector<std::pair<TeamRun, int>> add_figure_7(std::vector<Check>& checks) {
  // Figure 7 has one length, 64K, that is not lost; the other is twice that. The length of DiT is
  // that of a caption.
  const std::vector<TeamCase> cases{
      {{"c2", 32, kGpt3B, 65536}, 2, kLeastGpt, kMostGpt, {kOnePair, 2.023}},
      {{"c2", 32, kGpt3B, 131072}, 2, kLeastGpt, kMostGpt, {kOnePair, 2.445}},
      {{"c3", 32, kGpt3B, 65536}, 4, kLeastA100Of8, kMostGpt},
      {{"c3", 32, kGpt3B, 131072}, 4, kLeastGpt, kMostGpt, {kOnePair, 1.892}},
      {{"c4", 32, kGpt3B, 65536}, 0, kLeastGpt, kMostGpt},
      {{"c1", 32, kGpt7B, 65536}, 0, kLeastGpt, kMostGpt, {kRingOnH100, 2.943}},
      {{"c1", 32, kGpt7B, 131072}, 0, kLeastGpt, kMostGpt, {kRingOnH100, 2.377}},
      {{"c2", 32, kDit1B, 524288}, 0, kLeastDit, kMostDit, {kOnePair, 1.251}},
      {{"c3", 32, kDit1B, 524288}, 0, kLeastDit, kMostDit, {kOnePair, 1.145}},
  };
  std::vector<std::pair<TeamRun, int>> best_of;
  for (const TeamCase& of : cases) {
    const TeamGain gain = team_gain(of.run);
    const bool of_wallfacer = !of.run.model.is_dit && of.run.cluster != "c4";
    if (of_wallfacer) best_of.emplace_back(of.run, of.best == 0 ? gain.best : of.best);
    if (of.best != 0) {
      Check best = within(name_of(of.run) + ": best C", gain.best, of.best, of.best, "");
      best.published = fmt::format("{}", of.best);
      checks.push_back(best);
    }
    checks.push_back(outside(within(name_of(of.run) + ": a step of Ring over one of the best C",
                                    gain.over_ring, of.least, of.most, "x"),
                             of.known));
  }
  return best_of;
}

constexpr const char* kHeldBeside =
    "not known; Q, K and V of equation 10 alone give less, and what else the programs held is lost";

/// Figure 8: what Ring holds less than the best C, in each run of figure 7.
void add_figure_8(std::span<const std::pair<TeamRun, int>> runs, std::vector<Check>& checks) {
  const std::vector<Outside> known{{kHeldBeside, 7.71}, {}, {}, {}, {kHeldBeside, 4.922}, {}};
  ARMILLARY_CHECK(runs.size() == known.size());
  std::vector<double> less;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto& [run, team] = runs[r];
    less.push_back(100 * (1 - team_memory(run, 1) / team_memory(run, team)));
    checks.push_back(outside(
        within(
            fmt::format("WallFacer figure 8, {}: Ring holds less than C = {}", name_of(run), team),
            less[r], 7.9, 30.79, "%"),
        known[r]));
  }
  // Both lengths of two clusters with 3B, then of one with 7B.
  const bool smaller = less[4] < std::min(less[0], less[2]) && less[5] < std::min(less[1], less[3]);
  checks.push_back(
      agrees("WallFacer figure 8: less so for 7B than for 3B of the same length", smaller, true));
}

void add_scaling(std::vector<Check>& checks) {
  constexpr std::array kWorlds{8, 16, 32, 64};
  std::vector<double> strong;
  std::vector<double> weak;
  for (const int world : kWorlds) {
    strong.push_back(team_gain({"c1", world, kGpt7B, 131072}).over_ring);
    weak.push_back(team_gain({"c1", world, kGpt7B, 8192LL * world}).over_ring);
  }
  const auto texts = [](const std::vector<double>& gains) {
    return fmt::format("{:.2f}, {:.2f}, {:.2f}, {:.2f} x", gains[0], gains[1], gains[2], gains[3]);
  };
  const auto add_growth = [&](const std::string& statement, const std::vector<double>& gains) {
    Check check = agrees(statement, std::ranges::is_sorted(gains), true);
    check.value_text = texts(gains);
    check.published = "grows";
    checks.push_back(check);
  };
  add_growth("WallFacer figure 9: gain over Ring of 8 to 64 H100, 128K", strong);
  add_growth("WallFacer figure 10: the same with 8K tokens a rank", weak);
  // The text prints one gain, that of figure 9, and that those of figure 10 are smaller.
  constexpr double kStrong = 1.6071;
  checks.push_back(
      outside(near("WallFacer figure 9: gain of 64 H100", strong.back(), kStrong, 0.1, "x"),
              {kRingOnH100, 3.329}));
  checks.push_back(outside(within("WallFacer figure 10: gain of 64 H100, less than in figure 9",
                                  weak.back(), 1, kStrong, "x"),
                           {kRingOnH100, 1.871}));
  checks.push_back(agrees("WallFacer figure 10: less than in figure 9 as found here",
                          weak.back() < strong.back(), true));
}

constexpr const char* kOneSequence =
    "gathers of ZeRO-3 take longer than so few tokens; the papers' batches and lengths are lost";
constexpr const char* kBatchLost =
    "batch and lengths are lost, rates of links assumed; steps of more tokens gain more";
constexpr const char* kLinksLost =
    "rates of links, lengths and batch are lost; those here are assumed";
constexpr const char* kFullLinks =
    "gathers and attention share the Ethernet, which both fill; lengths and batch are lost";

/// A model of Attention2D's table 3 with a length; the paper's own lengths are lost.
struct GridCase {
  PaperModel model;
  std::int64_t seq;
  std::int64_t batch = 1;  ///< Sequences of a step, all in one pass.
};

/// Tokens of a step with more than one sequence: 8K on each of 64 ranks, and 16K.
constexpr std::int64_t kStepTokens = 524288;
constexpr std::int64_t kManyTokens = 2 * kStepTokens;

/// The presets alone. NCCL's collectives fill a link of which one flow takes 3.5 GB/s; nodes of c10
/// have one flow.
Constants numbers_of(const std::string& preset) {
  Constants numbers{.id = preset, .preset = preset};
  if (preset == "c10") numbers.step.gradient_share = 10 / 3.5;
  return numbers;
}

/// Attention with Transformer Engine's ring, the baseline of Attention2D: forward, and a backward
/// that moves K, V, dK and dV of a step as one message (flash_attn_p2p_communicate). That is
/// simulated as the forward of two sequences, which has the same messages; its kernels take 2 times
/// those of forward, not 2.5, which is in favour of the ring.
cost::AttentionTime engine_ring(PublishedRun run, const Constants& numbers) {
  run.strategy = plan::parse_strategy("ring");
  run.passes = {plan::Pass::Forward};
  std::vector<sim::Timeline> passes = simulate(run, numbers);
  run.problem.batch *= 2;
  for (sim::Timeline& backward : simulate(run, numbers)) passes.push_back(std::move(backward));
  return cost::attention_time(passes);
}

/// Attention in a layer.
struct GridAttention {
  cost::AttentionTime ring;
  cost::AttentionTime apart;    ///< Attention2D-NO.
  cost::AttentionTime overlap;  ///< Attention2D-O.
};
/// Seconds of attention in a layer, or of a step with ZeRO-3 around it.
struct GridSeconds {
  double ring = 0;
  double apart = 0;
  double overlap = 0;
};

plan::Problem grid_problem(int side, const GridCase& of) {
  plan::Problem problem =
      attention_of(side * side, of.seq, of.model.heads, of.model.head_dim, /*causal=*/true);
  problem.batch = of.batch;
  return problem;
}

GridAttention grid_attention(const char* preset, int side, const GridCase& of) {
  const Constants numbers = numbers_of(preset);
  PublishedRun run{.problem = grid_problem(side, of), .strategy = {}, .passes = kBoth};
  GridAttention times;
  run.problem.layout = {.kind = plan::LayoutKind::Zigzag};
  times.ring = engine_ring(run, numbers);
  run.problem.layout = {.kind = plan::LayoutKind::Striped};
  run.strategy = plan::parse_strategy(fmt::format("attention2d:rows={},overlap=false", side));
  times.apart = attention_time(run, numbers);
  run.strategy = plan::parse_strategy(fmt::format("attention2d:rows={},overlap=true", side));
  times.overlap = attention_time(run, numbers);
  return times;
}

GridSeconds grid_steps(const char* preset, int side, const GridCase& of) {
  const GridAttention attention = grid_attention(preset, side, of);
  const auto step = [&](const cost::AttentionTime& time) {
    return model_step_seconds(cost(of.model), grid_problem(side, of), time, /*zero=*/3,
                              numbers_of(preset));
  };
  return {.ring = step(attention.ring),
          .apart = step(attention.apart),
          .overlap = step(attention.overlap)};
}

/// The largest gain of either variant over Ring, and the least.
class Gains {
 public:
  void add(const GridSeconds& of, const GridCase& at) {
    const std::string name = fmt::format(" x ({}, {}K)", at.model.name, at.seq / 1024);
    if (const double gain = of.ring / std::min(of.apart, of.overlap); gain > most_) {
      most_ = gain;
      most_of_ = name;
    }
    if (const double gain = of.ring / std::max(of.apart, of.overlap); gain < least_) {
      least_ = gain;
      least_of_ = name;
    }
  }
  Check most(const std::string& statement, double published) const {
    Check check = near(statement + ", at most", most_, published, 0.1, "x");
    check.value_text = fmt::format("{:.2f}{}", most_, most_of_);
    return check;
  }
  Check least(const std::string& statement, double published) const {
    Check check = within(statement + ", at least", least_, 2, published, "x");
    check.value_text = fmt::format("{:.2f}{}", least_, least_of_);
    return check;
  }

 private:
  double most_ = 0;
  double least_ = std::numeric_limits<double>::infinity();
  std::string most_of_;
  std::string least_of_;
};

/// The same case with so many sequences that a step has these tokens.
GridCase with_step_tokens(GridCase of, std::int64_t tokens = kStepTokens) {
  of.batch = tokens / of.seq;
  return of;
}

/// One of the two headline gains, which are of steps; attention alone is told beside it.
struct GainFigure {
  const char* preset;
  std::vector<GridCase> cases;
  double published;
  /// The most and the least of steps of one sequence and of kStepTokens, the most of those of
  /// kManyTokens, and the most and the least of attention alone.
  std::array<Outside, 7> known;
};
void add_gains(const GainFigure& figure, std::vector<Check>& checks) {
  Gains alone;
  Gains short_steps;
  Gains steps;
  Gains long_steps;
  for (const GridCase& of : figure.cases) {
    const GridAttention attention = grid_attention(figure.preset, 8, of);
    alone.add({.ring = attention.ring.total(),
               .apart = attention.apart.total(),
               .overlap = attention.overlap.total()},
              of);
    short_steps.add(grid_steps(figure.preset, 8, of), of);
    steps.add(grid_steps(figure.preset, 8, with_step_tokens(of)), of);
    long_steps.add(grid_steps(figure.preset, 8, with_step_tokens(of, kManyTokens)), of);
  }
  const std::string ranks = fmt::format("{}, 64 ranks: ", figure.preset);
  const std::string of_short = ranks + "a step of one sequence, Ring over Attention2D";
  const std::string of_step = ranks + "a step of 512K tokens, Ring over Attention2D";
  const std::string of_attention = ranks + "attention alone, Ring over Attention2D";
  const std::string of_long = ranks + "a step of 1024K tokens, Ring over Attention2D";
  const std::vector<Check> rows{
      short_steps.most(of_short, figure.published), short_steps.least(of_short, figure.published),
      steps.most(of_step, figure.published),        steps.least(of_step, figure.published),
      long_steps.most(of_long, figure.published),   alone.most(of_attention, figure.published),
      alone.least(of_attention, figure.published)};
  for (std::size_t c = 0; c < rows.size(); ++c) {
    checks.push_back(outside(rows[c], figure.known[c]));
  }
}

constexpr PaperModel kGpt760M{"GPT-3 760M", 24, 16, 96};
constexpr PaperModel kGpt27B{"GPT-3 2.7B", 32, 32, 80};
constexpr PaperModel kGpt13B{"GPT-3 13B", 40, 40, 128};
// One stage of the pipeline, as in the paper's simulation: 8 of 64 and 96 layers.
constexpr PaperModel kGpt66B{"a stage of GPT-3 66B", 8, 72, 128};
constexpr PaperModel kGpt175B{"a stage of GPT-3 175B", 8, 96, 128};

void add_figure_5(std::vector<Check>& checks) {
  bool ring_gains = false;
  std::vector<double> gains;
  for (const std::int64_t seq : {8192, 32768, 131072}) {
    const GridCase of = with_step_tokens({kGpt27B, seq});
    const GridSeconds few = grid_steps("c9", 4, of);
    const GridSeconds many = grid_steps("c9", 8, of);
    ring_gains |= many.ring < few.ring;
    gains.push_back(few.apart / many.apart);
  }
  checks.push_back(
      agrees("Attention2D figure 5, c9: a step of 2.7B with Ring is shorter on 64 ranks than on 16",
             ring_gains, false));
  Check check = agrees(
      "Attention2D figure 5, c9: with Attention2D-NO it is, and more so with "
      "longer sequences",
      gains.front() > 1 && std::ranges::is_sorted(gains), true);
  check.value_text =
      fmt::format("{:.2f}, {:.2f}, {:.2f} x (8K, 32K, 128K)", gains[0], gains[1], gains[2]);
  checks.push_back(check);
  const char* const statement =
      "Attention2D figure 5, c9: gain of four times the ranks, 128K, the root of 4";
  checks.push_back(outside(near(statement, gains.back(), 2, 0.1, "x"), {kFullLinks, 1.488}));
}

}  // namespace

std::vector<Check> startrail_steps() {
  std::vector<Check> checks;
  add_figure_8(add_figure_7(checks), checks);
  add_scaling(checks);
  return checks;
}

std::vector<Check> attention2d_steps() {
  std::vector<Check> checks;
  add_gains({"c9",
             {{kGpt760M, 8192},
              {kGpt760M, 32768},
              {kGpt27B, 8192},
              {kGpt27B, 32768},
              {kGpt13B, 8192},
              {kGpt13B, 32768},
              {kGpt13B, 131072}},
             5,
             {{{kOneSequence, 3.397}, {kOneSequence, 1.056}, {}, {}, {}, {}, {}}}},
            checks);
  add_gains({"c10",
             {{kGpt66B, 8192}, {kGpt66B, 32768}, {kGpt66B, 131072}, {kGpt175B, 32768}},
             9.4,
             {{{kOneSequence, 3.601},
               {kOneSequence, 1.080},
               {kBatchLost, 7.883},
               {},
               {},
               {kLinksLost, 12.87},
               {kLinksLost, 9.91}}}},
            checks);
  add_figure_5(checks);
  return checks;
}

}  // namespace armillary::validate
