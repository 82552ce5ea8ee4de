// volume_checks.cpp: bytes that plans send and hold, beside the formulas of papers and of xDiT.
// Plans are for full masks, as the formulas are, so nothing is pruned.
#include <fmt/format.h>

#include <algorithm>

#include "armillary/lab/validate/check_builders.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/methods.h"
#include "armillary/predict/cost/model.h"

namespace armillary::validate {
namespace {

/// Bytes sent in forward by the rank that sends most: in collectives, and from rank to rank.
struct SentBytes {
  double collective = 0;
  double point_to_point = 0;
  double total() const { return collective + point_to_point; }
};
/// Without log-sum-exps, which the papers do not count.
SentBytes sent_by(const plan::Problem& problem, const char* strategy) {
  const plan::Plan plan = make_plan(problem, plan::parse_strategy(strategy), plan::Pass::Forward);
  const plan::TokenCounts counts(plan.blocks);
  SentBytes most;
  for (const plan::RankProgram& program : plan.ranks) {
    SentBytes volume;
    for (const plan::Op& op : program.ops) {
      if (op.kind != plan::OpKind::Send) continue;
      for (const plan::View& view : op.views) {
        const plan::Tile& tile = program.tiles[view.tile];
        if (tile.tensor == plan::Tensor::Lse) continue;
        const double bytes = static_cast<double>(problem.batch) *
                             static_cast<double>(counts.of(tile.tensor, view.blocks)) *
                             view.heads.count() * problem.head_dim *
                             static_cast<double>(bytes_of(dtype_of(plan.problem, tile)));
        (op.collective == plan::Collective::None ? volume.point_to_point : volume.collective) +=
            bytes;
      }
    }
    most.collective = std::max(most.collective, volume.collective);
    most.point_to_point = std::max(most.point_to_point, volume.point_to_point);
  }
  return most;
}

/// StarTrail's model M: 64 layers, hidden size 6,656, as 52 heads of 128.
plan::Problem of_model_m() {
  return attention_of(64, 65536, 52, 128, false);
}

/// Bytes of the Q, K and V that one attention of a rank reads, and of the result of that rank; of
/// the rank with most. Partial results in fp32 and K, V on their way are not counted, as in the
/// paper.
double held_by_model_m(const char* strategy) {
  const plan::Plan plan =
      make_plan(of_model_m(), plan::parse_strategy(strategy), plan::Pass::Forward);
  std::int64_t most = 0;
  for (const plan::RankProgram& program : plan.ranks) {
    std::int64_t result = 0;
    for (const int tile : program.outputs) {
      if (program.tiles[tile].tensor != plan::Tensor::Out) continue;
      result += bytes_of(plan.problem, plan.blocks, program.tiles[tile]);
    }
    std::int64_t read = 0;
    for (const plan::Op& op : program.ops) {
      if (!attends(op)) continue;
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

/// Bytes that the layers of model M keep on a rank, without log-sum-exps.
double kept_by_model_m(cost::Recompute policy) {
  const cost::ModelCost model = cost::cost_of({.layers = 64,
                                               .hidden = 6656,
                                               .heads = 52,
                                               .kv_heads = 52,
                                               .head_dim = 128,
                                               .ffn = 4 * 6656,
                                               .vocab = 1,
                                               .gated = false});
  return kept_bytes(model, policy, 65536.0 / 64);
}

Check exact(const std::string& statement, double count, double published) {
  return {.statement = statement,
          .value_text = fmt::format("{:.8g} GiB", count / kGiB),
          .published = fmt::format("{:.8g} GiB", published),
          .value = count / kGiB,
          .least = published,
          .most = published};
}

}  // namespace

std::vector<Check> model_m() {
  const SentBytes ring = sent_by(of_model_m(), "ring");
  const SentBytes teams = sent_by(of_model_m(), "startrail:c=4");
  const SentBytes lean = sent_by(of_model_m(), "grid:u=1,rq=16,rk=4,row=gather,col=ring");
  const double ring_held = held_by_model_m("ring");
  const double teams_held = held_by_model_m("startrail:c=4");
  // A of the paper: 65,536 tokens of 6,656 elements over 64 ranks, in bf16.
  const double a = 65536.0 * 6656 / 64 * 2 / kGiB;
  constexpr double kLayers = 64;
  const double inputs = kept_by_model_m(cost::Recompute::Full);
  const double outputs = kept_by_model_m(cost::Recompute::AttentionOutput);
  const char* const residuals = "layers keep their input beside attention's output: 2 Y A";
  return {exact("model M: Ring sends (P - 1)/P of 1.625 GiB", ring.point_to_point, 1.599609375),
          exact("model M: collectives of StarTrail, C = 4", teams.collective, 0.15234375),
          exact("model M: first hop and sub-ring", teams.point_to_point, 0.40625),
          exact("model M: StarTrail in all", teams.total(), 0.55859375),
          exact("model M: minimal grid with C = 4", lean.total(), 0.45703125),
          exact("model M: Q, K, V, Out of the plan of Ring: 4 A", ring_held, 4 * a),
          exact("model M: the same of StarTrail, C = 4: (3C + 1) A", teams_held, 13 * a),
          exact("model M: kept by layers that attend again, and Ring: (Y + 4) A",
                inputs + ring_held, 0.86328125),
          exact("model M: the same with StarTrail, C = 4: (Y + 3C + 1) A", inputs + teams_held,
                0.9775390625),
          outside(exact("model M: kept by layers with attention's output, and Ring: (Y + 4) A",
                        outputs + ring_held, 0.86328125),
                  {residuals, (2 * kLayers + 4) * a}),
          outside(exact("model M: these with StarTrail, C = 4: (Y + 3C + 1) A",
                        outputs + teams_held, 0.9775390625),
                  {residuals, (2 * kLayers + 13) * a})};
}

std::vector<Check> startrail_volumes() {
  plan::Problem llama = attention_of(64, 65536, 32, 128, true);
  llama.batch = 4;
  // The papers count all hops of the block of a rank, as rings without masks do.
  llama.mask = plan::full_mask({65536, 65536});
  const double ring = sent_by(llama, "ring").point_to_point;
  std::vector<Check> checks;
  for (const auto& [strategy, c] : {std::pair("startrail:c=2", 2), {"startrail:c=4", 4}}) {
    checks.push_back(
        near(fmt::format("llama-7B, 64 ranks, batch 4: StarTrail's bytes from rank to rank over "
                         "Ring's, C = {}",
                         c),
             sent_by(llama, strategy).point_to_point / ring, 1.0 / c, 0.02, ""));
  }
  return checks;
}

std::vector<Check> attention2d_volumes() {
  struct Case {
    const char* name;
    const char* few;
    const char* many;
    double published;
  };
  const std::vector<Case> cases{{"Ring", "ring", "ring", 1},
                                {"Ulysses", "ulysses", "ulysses", 0.25},
                                {"Attention2D", "attention2d:rows=4", "attention2d:rows=8", 0.5}};
  std::vector<Check> checks;
  for (const Case& of : cases) {
    const auto bytes = [](int world, const char* strategy) {
      return sent_by(attention_of(world, 65536, 64, 128, false), strategy).total();
    };
    checks.push_back(near(fmt::format("Attention2D table 1, {}: sent by one of 64 ranks over one "
                                      "of 16",
                                      of.name),
                          bytes(64, of.many) / bytes(16, of.few), of.published, 0.1, ""));
  }
  return checks;
}

std::vector<Check> xdit_volumes() {
  constexpr int kRanks = 16;
  constexpr int kHeads = 64;
  const plan::Problem problem = attention_of(kRanks, 65536, kHeads, 128, false);
  // p h of the table: elements of all tokens.
  const double whole = 65536.0 * kHeads * 128;
  const double ring = sent_by(problem, "ring").total() / 2;
  const double ulysses = sent_by(problem, "ulysses").total() / 2;
  const cost::ModelShape shape{
      .layers = 1, .hidden = kHeads * 128, .heads = kHeads, .kv_heads = kHeads, .head_dim = 128};
  double tensor_parallel = 0;
  for (const cost::MethodCost& row :
       cost::method_costs({.model = cost::cost_of(shape), .seq = 65536}, kRanks)) {
    // Forward is half of it.
    if (row.method == "TP") tensor_parallel = row.activation_elements / 2;
  }
  const std::string table = "xDiT's table, 16 ranks: elements sent over p h, ";
  return {near(table + "TP", tensor_parallel / whole, 4, 0.1, ""),
          near(table + "Ring", ring / whole, 2, 0.1, ""),
          near(table + "Ulysses", ulysses / whole, 4.0 / kRanks, 0.1, ""),
          near("xDiT's table, 16 ranks: Ulysses over Ring, 2 / N", ulysses / ring, 2.0 / kRanks,
               0.02, "")};
}

}  // namespace armillary::validate
