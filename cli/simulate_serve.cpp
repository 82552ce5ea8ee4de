// The part of the verb `simulate` about inference: a prompt of a model that is read over all ranks
// and continued. The problem follows from the model, so flags that would contradict it are refused.
#include <fmt/format.h>

#include <string>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/predict/cost/inference.h"
#include "armillary/predict/cost/known_models.h"
#include "cli/advise.h"
#include "cli/inference_text.h"
#include "cli/problem_flags.h"
#include "cli/simulate.h"

namespace armillary::cli {
namespace {

/// Refuses flags that the model decides, or whose output is that of one pass of attention.
void refuse_with_model(const CLI::App& verb) {
  for (const char* flag :
       {"--kv-seq", "--heads", "--kv-heads", "--head-dim", "--value-dim", "--mask", "--pass",
        "--lower", "--transfer-dtype", "--return-lse", "--dtype", "--trace", "--compare", "--fold",
        "--bandwidth", "--weak", "--strategies", "--csv"}) {
    if (verb.count(flag) == 0) continue;
    fail<InvalidArgument>(
        "simulate: {} given with --serve, whose model has heads, bf16 and a causal mask; --world, "
        "--tp, --seq, --batch, --strategy, --layout and --json are legal",
        flag);
  }
}

/// Ranks of a group along cp: all ranks, or those of the cluster, over tp.
int cp_of(const ServeQuestion& question, const CLI::App& verb, const sim::Cluster& cluster) {
  const int world = verb.count("--world") > 0 ? parse_count("--world", question.problem.world)
                                              : cluster.devices();
  const int tp = parse_count("--tp", question.flags.tp);
  if (world % tp == 0) return world / tp;
  fail<InvalidArgument>("simulate: --tp {} of --world {}; a divisor is required; nearest: {}", tp,
                        world, nearest_divisor(world, tp));
}

}  // namespace

void add_serve_flags(CLI::App& verb, ServeFlags& flags) {
  const std::string group = "Inference";
  verb.add_option(
          "--serve", flags.model,
          "A prompt of --seq tokens that is read and continued by this model: llama3-8b, ..\n"
          "or layers=L,hidden=E,heads=H,ffn=F,vocab=V; --world [all devices], --layout "
          "[zigzag]")
      ->group(group)
      ->check(not_empty());
  verb.add_option("--tp", flags.tp, "Ranks of a node that share heads and matrices [1]")
      ->needs("--serve")
      ->group(group)
      ->check(not_empty());
}

void run_serve(const CLI::App& verb, const ServeQuestion& question) {
  refuse_with_model(verb);
  const std::string& model = question.flags.model;
  if (is_recipe(model)) {
    fail<InvalidArgument>(
        "simulate: recipe {} given with --serve; a known model, or "
        "layers=L,hidden=E,heads=H,ffn=F,vocab=V, is required; nearest: advise {} --step prefill",
        model, model);
  }
  const sim::Cluster cluster = sim::load_cluster(question.cluster);
  const ProblemFlags& problem = question.problem;
  const cost::Inference inference{
      .model = cost::parse_model(model, cost::StepKind::Prefill),
      .prompt = parse_integer("--seq", problem.seq, {1}),
      .sequences = parse_integer("--batch", problem.batch, {1}),
      .cp = cp_of(question, verb, cluster),
      .tp = parse_count("--tp", question.flags.tp),
      .strategy = plan::parse_strategy(problem.strategy),
      .layout =
          plan::parse_layout(verb.count("--layout") > 0 ? problem.layout : std::string("zigzag"))};
  const cost::InferenceCost cost = inference_cost(inference, cluster);
  check_inference_fits("simulate", inference, cost, cluster);
  if (question.json) {
    fmt::print("{}\n", to_json(inference, cost));
  } else {
    print_inference(model, inference, cost, cluster);
  }
}

}  // namespace armillary::cli
