// step_checks.cpp: training steps of StarTrail, WallFacer and Attention2D against those of Ring.
// The papers' gains are of whole steps; steps of both differ in attention alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "armillary/core/error.h"
#include "armillary/plan/strategy.h"
#include "armillary/validate/check_builders.h"
#include "armillary/validate/model_step.h"
#include "armillary/validate/published_run.h"

namespace armillary::validate {
namespace {

const std::vector<plan::Pass> kBoth{plan::Pass::Forward, plan::Pass::Backward};

/// Published shape of a model: its heads fill its hidden size.
struct Model {
  const char* name;
  int layers;
  int heads;
  int head_dim;
  bool is_dit = false;
};
constexpr Model kGpt3B{"GPT 3B", 12, 16, 256};
constexpr Model kGpt7B{"GPT 7B", 32, 32, 128};
constexpr Model kDit1B{"DiT 1B", 24, 24, 64, true};

sim::ModelCost cost(const Model& model) {
  if (!model.is_dit) return gpt_cost(model.layers, model.heads, model.head_dim);
  const int hidden = model.heads * model.head_dim;
  return sim::dit_cost_of({.layers = model.layers,
                           .hidden = hidden,
                           .heads = model.heads,
                           .kv_heads = model.heads,
                           .head_dim = model.head_dim,
                           .ffn = 4 * hidden,
                           .vocab = 1,
                           .gated = false},
                          0);
}

/// One model on a cluster: a sub-figure of WallFacer's figure 7, or a point of figure 9 or 10.
struct TeamCase {
  const char* cluster;
  int world;
  Model model;
  std::int64_t seq;
  int best = 0;                ///< Published C; 0: not published.
  double least = 0, most = 0;  ///< Published gains of its kind.
  const char* cause = "";      ///< As Check::cause, of the gain.
};

/// Whether teams of this size divide the ranks.
bool divides(int team, int world) {
  return world % (team * team) == 0;
}

/// Seconds of a step with ZeRO-2; the faster placement.
double team_seconds(const TeamCase& of, int team) {
  const Model& model = of.model;
  PublishedRun run{
      .problem = attention_of(of.world, of.seq, model.heads, model.head_dim, !model.is_dit),
      .strategy = {},
      .passes = kBoth};
  if (!model.is_dit) run.problem.layout = {.kind = plan::Layout::Kind::Zigzag};
  const Constants preset{.id = of.cluster, .preset = of.cluster};
  double best = std::numeric_limits<double>::infinity();
  for (const char* placement : {"p2p_intra", "collect_intra"}) {
    run.strategy = plan::parse_strategy(
        team == 1 ? "ring" : fmt::format("startrail:c={},placement={}", team, placement));
    best = std::min(best, seconds(run, preset));
    if (team == 1) break;
  }
  return model_step_seconds(cost(model), run.problem, best, /*zero=*/2, preset);
}

/// The best team size of StarTrail and its gain.
struct TeamGain {
  int best = 2;
  double over_ring = 0;
};
TeamGain team_gain(const TeamCase& of) {
  const double ring = team_seconds(of, 1);
  TeamGain found;
  for (const int team : {2, 4}) {
    if (!divides(team, of.world)) continue;
    const double gain = ring / team_seconds(of, team);
    if (gain > found.over_ring) found = {.best = team, .over_ring = gain};
  }
  return found;
}

std::string name_of(const TeamCase& of) {
  return fmt::format("{}, {} ranks, {}, {}K", of.cluster, of.world, of.model.name, of.seq / 1024);
}

/// Published gains: the six of GPTs in both papers, the two of DiT in StarTrail's. Those on nodes
/// of eight A100 with 64K tokens are one of three (WallFacer, caption of figure 7).
constexpr double kLeastGpt = 1.199, kMostGpt = 1.771, kLeastDit = 1.414, kMostDit = 2.114;
constexpr double kLeastA100Of8 = 1.36;

constexpr const char* kOnePair =
    "one rate for a pair of ranks between nodes gives GPTs too much or DiT too little";
constexpr const char* kRingOnH100 =
    "not known; Ring alone sends between nodes in each step, over one NIC of eight";

void add_figure_7(std::vector<Check>& checks) {
  // Figure 7 has one length, 64K, that is not lost; the other is twice that. The length of DiT is
  // that of a caption.
  const std::vector<TeamCase> cases{
      {"c2", 32, kGpt3B, 65536, 2, kLeastGpt, kMostGpt, kOnePair},
      {"c2", 32, kGpt3B, 131072, 2, kLeastGpt, kMostGpt, kOnePair},
      {"c3", 32, kGpt3B, 65536, 4, kLeastA100Of8, kMostGpt},
      {"c3", 32, kGpt3B, 131072, 4, kLeastGpt, kMostGpt, kOnePair},
      {"c4", 32, kGpt3B, 65536, 0, kLeastGpt, kMostGpt},
      {"c1", 32, kGpt7B, 65536, 0, kLeastGpt, kMostGpt, kRingOnH100},
      {"c1", 32, kGpt7B, 131072, 0, kLeastGpt, kMostGpt, kRingOnH100},
      {"c2", 32, kDit1B, 524288, 0, kLeastDit, kMostDit, kOnePair},
      {"c3", 32, kDit1B, 524288, 0, kLeastDit, kMostDit, kOnePair},
  };
  for (const TeamCase& of : cases) {
    const TeamGain gain = team_gain(of);
    if (of.best != 0) {
      Check best = within(name_of(of) + ": best C", gain.best, of.best, of.best, "");
      best.published = fmt::format("{}", of.best);
      checks.push_back(best);
    }
    checks.push_back(outside(within(name_of(of) + ": a step of Ring over one of the best C",
                                    gain.over_ring, of.least, of.most, "x"),
                             of.cause));
  }
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
    check.found = texts(gains);
    check.published = "grows";
    checks.push_back(check);
  };
  add_growth("WallFacer figure 9: gain over Ring of 8 to 64 H100, 128K", strong);
  add_growth("WallFacer figure 10: the same with 8K tokens a rank", weak);
  checks.push_back(outside(
      near("WallFacer figure 9: gain of 64 H100", strong.back(), 1.6071, 0.1, "x"), kRingOnH100));
  checks.push_back(within("WallFacer figure 10: gain of 64 H100, less than in figure 9",
                          weak.back(), 1, strong.back(), "x"));
}

constexpr const char* kNothingOverlaps =
    "gathers of ZeRO-3 overlap nothing here; lengths, batch and rates of links are lost";
constexpr const char* kLinksLost =
    "rates of links, lengths and batch are lost; those here are assumed";

/// A model of Attention2D's table 3 with a length; the paper's own lengths are lost.
struct GridCase {
  Model model;
  std::int64_t seq;
};

/// Seconds of attention with Transformer Engine's ring, the baseline of Attention2D: forward, and a
/// backward that moves K, V, dK and dV of a step as one message (flash_attn_p2p_communicate). That
/// is simulated as the forward of two sequences, which has the same messages; its kernels take 2
/// times those of forward, not 2.5, which is in favour of the ring.
double engine_ring_seconds(PublishedRun run, const Constants& numbers) {
  run.strategy = plan::parse_strategy("ring");
  run.passes = {plan::Pass::Forward};
  const double forward = seconds(run, numbers);
  run.problem.batch *= 2;
  return forward + seconds(run, numbers);
}

/// Seconds of attention in a layer, or of a step with ZeRO-3 around it.
struct GridSeconds {
  double ring = 0;
  double apart = 0;    ///< Attention2D-NO.
  double overlap = 0;  ///< Attention2D-O.
};
GridSeconds grid_attention(const char* preset, int side, const GridCase& of) {
  const Constants numbers{.id = preset, .preset = preset};
  const Model& model = of.model;
  PublishedRun run{.problem = attention_of(side * side, of.seq, model.heads, model.head_dim, true),
                   .strategy = {},
                   .passes = kBoth};
  GridSeconds found;
  run.problem.layout = {.kind = plan::Layout::Kind::Zigzag};
  found.ring = engine_ring_seconds(run, numbers);
  run.problem.layout = {.kind = plan::Layout::Kind::Striped};
  run.strategy = plan::parse_strategy(fmt::format("attention2d:rows={},overlap=false", side));
  found.apart = seconds(run, numbers);
  run.strategy = plan::parse_strategy(fmt::format("attention2d:rows={},overlap=true", side));
  found.overlap = seconds(run, numbers);
  return found;
}

GridSeconds grid_steps(const char* preset, int side, const GridCase& of,
                       const GridSeconds& attention) {
  const plan::Problem problem =
      attention_of(side * side, of.seq, of.model.heads, of.model.head_dim, true);
  const auto step = [&](double attention_s) {
    return model_step_seconds(cost(of.model), problem, attention_s, /*zero=*/3,
                              {.id = preset, .preset = preset});
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
    check.found = fmt::format("{:.2f}{}", most_, most_of_);
    return check;
  }
  Check least(const std::string& statement, double published) const {
    Check check = within(statement + ", at least", least_, 2, published, "x");
    check.found = fmt::format("{:.2f}{}", least_, least_of_);
    return check;
  }

 private:
  double most_ = 0;
  double least_ = std::numeric_limits<double>::infinity();
  std::string most_of_;
  std::string least_of_;
};

/// One of the two headline gains, which are of steps; attention alone is told beside it.
struct GainFigure {
  const char* preset;
  std::vector<GridCase> cases;
  double published;
  /// Causes: of the most and the least of steps, then of attention alone.
  std::array<const char*, 4> causes;
};
void add_gains(const GainFigure& figure, std::vector<Check>& checks) {
  Gains alone;
  Gains steps;
  for (const GridCase& of : figure.cases) {
    const GridSeconds attention = grid_attention(figure.preset, 8, of);
    alone.add(attention, of);
    steps.add(grid_steps(figure.preset, 8, of, attention), of);
  }
  const std::string ranks = fmt::format("{}, 64 ranks: ", figure.preset);
  const std::string of_step = ranks + "a step of Ring over Attention2D";
  const std::string of_attention = ranks + "attention alone, Ring over Attention2D";
  const std::vector<Check> found{
      steps.most(of_step, figure.published), steps.least(of_step, figure.published),
      alone.most(of_attention, figure.published), alone.least(of_attention, figure.published)};
  for (std::size_t c = 0; c < found.size(); ++c) {
    checks.push_back(outside(found[c], figure.causes[c]));
  }
}

constexpr Model kGpt760M{"GPT-3 760M", 24, 16, 96};
constexpr Model kGpt27B{"GPT-3 2.7B", 32, 32, 80};
constexpr Model kGpt13B{"GPT-3 13B", 40, 40, 128};
// One stage of the pipeline, as in the paper's simulation: 8 of 64 and 96 layers.
constexpr Model kGpt66B{"a stage of GPT-3 66B", 8, 72, 128};
constexpr Model kGpt175B{"a stage of GPT-3 175B", 8, 96, 128};

void add_figure_5(std::vector<Check>& checks) {
  bool ring_gains = false;
  std::vector<double> gains;
  for (const std::int64_t seq : {8192, 32768, 131072}) {
    const GridCase of{kGpt27B, seq};
    const GridSeconds few = grid_steps("c9", 4, of, grid_attention("c9", 4, of));
    const GridSeconds many = grid_steps("c9", 8, of, grid_attention("c9", 8, of));
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
  check.found =
      fmt::format("{:.2f}, {:.2f}, {:.2f} x (8K, 32K, 128K)", gains[0], gains[1], gains[2]);
  checks.push_back(check);
  const char* const statement =
      "Attention2D figure 5, c9: gain of four times the ranks, 128K, the root of 4";
  checks.push_back(outside(near(statement, gains.back(), 2, 0.1, "x"), kNothingOverlaps));
}

}  // namespace

std::vector<Check> startrail_steps() {
  std::vector<Check> checks;
  add_figure_7(checks);
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
             {kNothingOverlaps, kNothingOverlaps, "", ""}},
            checks);
  add_gains({"c10",
             {{kGpt66B, 8192}, {kGpt66B, 32768}, {kGpt66B, 131072}, {kGpt175B, 32768}},
             9.4,
             {kNothingOverlaps, kNothingOverlaps, kLinksLost, kLinksLost}},
            checks);
  add_figure_5(checks);
  return checks;
}

}  // namespace armillary::validate
