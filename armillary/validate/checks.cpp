// Statements of the papers that need no fitted number: ratios by simulation on an ideal device,
// volumes counted in plans, choices by simulation on the presets, lengths by the memory of a step.
#include "armillary/validate/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "armillary/plan/strategy.h"
#include "armillary/sim/engine.h"
#include "armillary/sim/step.h"
#include "armillary/validate/published_run.h"

namespace armillary::validate {
namespace {

constexpr double kGiB = 1 << 30;

/// A machine on which only the visible pairs take time.
constexpr const char* kIdealCluster = R"(name = "ideal"
[nodes]
count = 1
devices = 16
[device]
name = "ideal"
memory_GiB = 1024
memory_GBps = 1e9
peak_TFLOPs = 100
[[device.kernel]]
pass = "both"
mask = "both"
head_dim = 128
dtype = "bf16"
TFLOPs = 100
half_tokens = 0
[[link]]
from = "device"
to = "switch"
GBps = 1e6
)";

plan::Problem attention(int world, std::int64_t seq, int heads, int head_dim, bool causal) {
  return {.world = world,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .value_dim = head_dim,
          .dtype = plan::Dtype::Bf16,
          .mask = causal ? plan::causal_mask({seq, seq}, plan::Align::Start)
                         : plan::full_mask({seq, seq}),
          .wire = plan::Wire::Input};
}

double ring_seconds(const sim::Cluster& cluster, int world, plan::Layout::Kind layout) {
  plan::Problem problem = attention(world, 65536, 8, 128, /*causal=*/true);
  problem.layout = {.kind = layout};
  return simulate(plan::Planner(problem, plan::parse_strategy("ring")), plan::Pass::Forward,
                  cluster)
      .end_s;
}

/// Bytes sent in forward by the rank that sends most: in collectives, and from rank to rank.
struct Sent {
  double collective = 0;
  double point_to_point = 0;
};
plan::Plan plan_of_model_m(const char* strategy) {
  return make_plan(attention(64, 65536, 52, 128, false), plan::parse_strategy(strategy),
                   plan::Pass::Forward);
}
Sent sent_by_model_m(const char* strategy) {
  const plan::Plan plan = plan_of_model_m(strategy);
  const plan::TokenCounts counts(plan.blocks);
  Sent most;
  for (const plan::RankProgram& program : plan.ranks) {
    Sent sent;
    for (const plan::Op& op : program.ops) {
      if (op.kind != plan::OpKind::Send) continue;
      for (const plan::View& view : op.views) {
        const plan::Tile& tile = program.tiles[view.tile];
        if (tile.tensor == plan::Tensor::Lse) continue;
        const double bytes = static_cast<double>(counts.of(tile.tensor, view.blocks)) *
                             view.heads.count() * 128 *
                             static_cast<double>(bytes_of(dtype_of(plan.problem, tile)));
        (op.collective == plan::Collective::None ? sent.point_to_point : sent.collective) += bytes;
      }
    }
    most.collective = std::max(most.collective, sent.collective);
    most.point_to_point = std::max(most.point_to_point, sent.point_to_point);
  }
  return most;
}

/// Bytes of the Q, K and V that one attention of a rank reads, and of the result of that rank; of
/// the rank with most. Partial results in fp32 and K, V on their way are not counted, as in the
/// paper.
double held_by_model_m(const char* strategy) {
  const plan::Plan plan = plan_of_model_m(strategy);
  std::int64_t most = 0;
  for (const plan::RankProgram& program : plan.ranks) {
    std::int64_t result = 0;
    for (const int tile : program.outputs) {
      if (program.tiles[tile].tensor != plan::Tensor::Out) continue;
      result += bytes_of(plan.problem, plan.blocks, program.tiles[tile]);
    }
    std::int64_t read = 0;
    for (const plan::Op& op : program.ops) {
      if (!op.attends()) continue;
      std::int64_t of_op = 0;
      for (const plan::View& view : op.views) {
        const plan::Tile& tile = program.tiles[view.tile];
        if (tile.tensor == plan::Tensor::Q || is_kv(tile.tensor)) {
          of_op += bytes_of(plan.problem, plan.blocks, tile, view);
        }
      }
      read = std::max(read, of_op);
    }
    most = std::max(most, read + result);
  }
  return static_cast<double>(most);
}

Check exact(const std::string& statement, double found, double published) {
  return {.statement = statement,
          .found = fmt::format("{:.8g} GiB", found / kGiB),
          .published = fmt::format("{:.8g} GiB", published),
          .holds = found == published * kGiB};
}

/// One sub-figure of WallFacer's figure 7, or a cluster and model of StarTrail's table 1.
struct TeamCase {
  const char* cluster;
  int world;
  int heads;
  int head_dim;
  std::int64_t seq;
  bool causal;
  int best;  ///< Published; 0: not published.
};

/// Seconds of attention, forward and backward; the faster placement.
double team_seconds(const TeamCase& of, int team) {
  PublishedRun run{.problem = attention(of.world, of.seq, of.heads, of.head_dim, of.causal),
                   .strategy = {},
                   .passes = {plan::Pass::Forward, plan::Pass::Backward}};
  if (of.causal) run.problem.layout = {.kind = plan::Layout::Kind::Zigzag};
  const Constants preset{.id = of.cluster, .preset = of.cluster};
  if (team == 1) {
    run.strategy = plan::parse_strategy("ring");
    return seconds(run, preset);
  }
  double best = std::numeric_limits<double>::infinity();
  for (const char* placement : {"p2p_intra", "collect_intra"}) {
    run.strategy =
        plan::parse_strategy(fmt::format("startrail:c={},placement={}", team, placement));
    best = std::min(best, seconds(run, preset));
  }
  return best;
}

/// Whether the best team size is the published one, and beats Ring.
void add_team_checks(const TeamCase& of, std::vector<Check>& checks) {
  const double ring = team_seconds(of, 1);
  const double two = team_seconds(of, 2);
  const double four = team_seconds(of, 4);
  const int best = two <= four ? 2 : 4;
  const std::string name =
      fmt::format("{}, {} ranks, {}K, {} x {} {}", of.cluster, of.world, of.seq / 1024, of.heads,
                  of.head_dim, of.causal ? "causal" : "full");
  if (of.best != 0) {
    checks.push_back(
        {.statement = name + ": best C",
         .found = fmt::format("{} ({:.4g} ms; {:.4g} with C = {})", best, std::min(two, four) * 1e3,
                              std::max(two, four) * 1e3, 6 - best),
         .published = fmt::format("{}", of.best),
         .holds = best == of.best});
  }
  checks.push_back({.statement = name + ": best C over Ring",
                    .found = fmt::format("{:.2f} x", ring / std::min(two, four)),
                    .published = "> 1",
                    .holds = std::min(two, four) < ring});
}

/// A model of Attention2D's table 3 with a length; the paper's own lengths are lost.
struct GridCase {
  const char* model;
  int heads;
  int head_dim;
  std::int64_t seq;
};

/// Seconds of Transformer Engine's ring, the baseline of Attention2D: forward, and a backward that
/// moves K, V, dK and dV of a step as one message (flash_attn_p2p_communicate). That is simulated
/// as the forward of two sequences, which has the same messages; its kernels take 2 times those of
/// forward, not 2.5, which is in favour of the ring.
double engine_ring_seconds(PublishedRun run, const Constants& numbers) {
  run.strategy = plan::parse_strategy("ring");
  run.passes = {plan::Pass::Forward};
  const double forward = seconds(run, numbers);
  run.problem.batch *= 2;
  return forward + seconds(run, numbers);
}

/// Ring's time over that of Attention2D, attention forward and backward.
struct GridGain {
  double apart = 0;    ///< Attention2D-NO.
  double overlap = 0;  ///< Attention2D-O.
};
GridGain grid_gain(const char* preset, const GridCase& of) {
  const Constants numbers{.id = preset, .preset = preset};
  PublishedRun run{.problem = attention(64, of.seq, of.heads, of.head_dim, true),
                   .strategy = {},
                   .passes = {plan::Pass::Forward, plan::Pass::Backward}};
  run.problem.layout = {.kind = plan::Layout::Kind::Zigzag};
  const double ring = engine_ring_seconds(run, numbers);
  run.problem.layout = {.kind = plan::Layout::Kind::Striped};
  const auto gain = [&](const char* strategy) {
    run.strategy = plan::parse_strategy(strategy);
    return ring / seconds(run, numbers);
  };
  return {.apart = gain("attention2d:rows=8,overlap=false"),
          .overlap = gain("attention2d:rows=8,overlap=true")};
}

/// Longest sequence in thousands of tokens, in steps of two, that fits 80 GiB.
int longest_k(const sim::ModelShape& model, const sim::StepParallelism& parallelism) {
  int k = 0;
  const auto bytes = [&](int of) {
    return sim::step_memory(
               {.model = cost_of(model), .seq = of * 1024LL, .parallelism = parallelism})
        .total();
  };
  while (bytes(k + 2) <= 80 * kGiB) k += 2;
  return k;
}

}  // namespace

std::vector<Check> ring_balance() {
  const sim::Cluster cluster = sim::parse_cluster(kIdealCluster, "ideal");
  std::vector<Check> checks;
  for (const int r : {2, 4, 8, 16}) {
    const double found = ring_seconds(cluster, r, plan::Layout::Kind::Zigzag) /
                         ring_seconds(cluster, r, plan::Layout::Kind::Contiguous);
    const double ideal = static_cast<double>(r) / (2 * r - 1);
    checks.push_back({.statement = fmt::format("causal ring of {}, contiguous over zigzag", r),
                      .found = fmt::format("{:.4f}", found),
                      .published = fmt::format("{:.4f} = {}/{}, within 2 %", ideal, r, 2 * r - 1),
                      .holds = std::abs(found / ideal - 1) <= 0.02});
  }
  return checks;
}

std::vector<Check> model_m() {
  const Sent ring = sent_by_model_m("ring");
  const Sent teams = sent_by_model_m("startrail:c=4");
  const Sent lean = sent_by_model_m("grid:u=1,rq=16,rk=4,row=gather,col=ring");
  // A of the paper: 65,536 tokens of 6,656 elements over 64 ranks, in bf16. Y layers keep one each.
  const double layers = 64 * (65536.0 * 6656 / 64 * 2);
  return {
      exact("model M: Ring sends (P - 1)/P of 1.625 GiB", ring.point_to_point, 1.599609375),
      exact("model M: collectives of StarTrail, C = 4", teams.collective, 0.15234375),
      exact("model M: first hop and sub-ring", teams.point_to_point, 0.40625),
      exact("model M: StarTrail in all", teams.collective + teams.point_to_point, 0.55859375),
      exact("model M: minimal grid with C = 4", lean.collective + lean.point_to_point, 0.45703125),
      exact("model M: Y layers, and Q, K, V, Out of the plan of Ring: (Y + 4) A",
            layers + held_by_model_m("ring"), 0.86328125),
      exact("model M: the same of StarTrail, C = 4: (Y + 3C + 1) A",
            layers + held_by_model_m("startrail:c=4"), 0.9775390625)};
}

std::vector<Check> best_team_sizes() {
  // GPT 3B: 16 heads of 256; GPT 7B: 32 of 128; DiT 1B: 24 of 64, full mask. Figure 7 of WallFacer
  // has its first length only, 64K; the other is twice that. The length of DiT is that of a
  // caption.
  const std::vector<TeamCase> cases{
      {"c2", 32, 16, 256, 65536, true, 2},  {"c2", 32, 16, 256, 131072, true, 2},
      {"c3", 32, 16, 256, 65536, true, 4},  {"c3", 32, 16, 256, 131072, true, 4},
      {"c4", 32, 16, 256, 65536, true, 0},  {"c1", 32, 32, 128, 65536, true, 0},
      {"c1", 32, 32, 128, 131072, true, 0}, {"c2", 32, 24, 64, 524288, false, 0},
      {"c3", 32, 24, 64, 524288, false, 0},
  };
  std::vector<Check> checks;
  for (const TeamCase& of : cases) add_team_checks(of, checks);
  return checks;
}

std::vector<Check> attention2d_gains() {
  const std::vector<GridCase> a100{{"760M", 16, 96, 8192},  {"760M", 16, 96, 32768},
                                   {"2.7B", 32, 80, 8192},  {"2.7B", 32, 80, 32768},
                                   {"13B", 40, 128, 8192},  {"13B", 40, 128, 32768},
                                   {"13B", 40, 128, 131072}};
  const std::vector<GridCase> h100{{"66B", 72, 128, 8192},
                                   {"66B", 72, 128, 32768},
                                   {"66B", 72, 128, 131072},
                                   {"175B", 96, 128, 32768}};
  std::vector<Check> checks;
  const auto add = [&](const char* preset, const std::vector<GridCase>& cases, double published) {
    double best = 0;
    double least = std::numeric_limits<double>::infinity();
    std::string best_of;
    std::string least_of;
    for (const GridCase& of : cases) {
      const GridGain gain = grid_gain(preset, of);
      const std::string name = fmt::format("GPT-3 {}, {}K", of.model, of.seq / 1024);
      if (const double more = std::max(gain.apart, gain.overlap); more > best) {
        best = more;
        best_of = name;
      }
      if (const double less = std::min(gain.apart, gain.overlap); less < least) {
        least = less;
        least_of = name;
      }
    }
    checks.push_back(
        {.statement = fmt::format("{}, 64 ranks: Attention2D over Ring at most", preset),
         .found = fmt::format("{:.2f} x ({})", best, best_of),
         .published = fmt::format(">= {}", published),
         .holds = best >= published});
    checks.push_back(
        {.statement = fmt::format("{}, 64 ranks: Attention2D over Ring at least", preset),
         .found = fmt::format("{:.2f} x ({})", least, least_of),
         .published = "> 2",
         .holds = least > 2});
  };
  add("c9", a100, 5);
  add("c10", h100, 9);
  return checks;
}

std::vector<Check> longest_sequences() {
  const sim::ModelShape llama3{.layers = 32,
                               .hidden = 4096,
                               .heads = 32,
                               .kv_heads = 8,
                               .head_dim = 128,
                               .ffn = 14336,
                               .vocab = 128256};
  const sim::ModelShape llama2{.layers = 32,
                               .hidden = 4096,
                               .heads = 32,
                               .kv_heads = 32,
                               .head_dim = 128,
                               .ffn = 11008,
                               .vocab = 32000};
  std::vector<Check> checks;
  const auto longest = [&](const char* name, int tp, int published) {
    const int found = longest_k(llama3, {.tp = tp, .sp = 16 / tp});
    checks.push_back({.statement = fmt::format("USP table 7, {}: longest sequence", name),
                      .found = fmt::format("{}K", found),
                      .published = fmt::format("{}K, within 16K", published),
                      .holds = std::abs(found - published) <= 16});
  };
  longest("tp 8, ring 2", 8, 208);
  longest("tp 4, ring 4", 4, 190);
  const auto fits = [&](const char* name, const sim::ModelShape& model, int sp, int k, bool yes) {
    const bool found = longest_k(model, {.sp = sp}) >= k;
    checks.push_back({.statement = fmt::format("USP {}: tp 1 fits {}K", name, k),
                      .found = found ? "yes" : "no",
                      .published = yes ? "yes" : "no",
                      .holds = found == yes});
  };
  fits("table 6, 16 GPUs", llama3, 16, 80, true);
  fits("table 6, 16 GPUs", llama3, 16, 120, false);
  fits("table 5, 8 GPUs", llama2, 8, 64, false);
  return checks;
}

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (const auto& some :
       {ring_balance(), model_m(), best_team_sizes(), attention2d_gains(), longest_sequences()}) {
    checks.insert(checks.end(), some.begin(), some.end());
  }
  return checks;
}

std::string checks_table(const std::vector<Check>& checks) {
  std::string text = "| statement | found | published | |\n|---|---:|---:|---|\n";
  for (const Check& check : checks) {
    text += fmt::format("| {} | {} | {} | {} |\n", check.statement, check.found, check.published,
                        check.holds ? "holds" : "**fails**");
  }
  return text;
}

}  // namespace armillary::validate
