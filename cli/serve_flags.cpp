// serve_flags.cpp: a prompt of a model from flags. The problem follows from the model, so flags
// that would contradict it, or whose output is that of one pass of attention, are refused.
#include "cli/serve_flags.h"

#include <fmt/format.h>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/predict/cost/known_models.h"
#include "cli/advise.h"

namespace armillary::cli {
namespace {

void refuse_with_model(const CLI::App& verb) {
  for (const char* flag :
       {"--kv-seq", "--heads", "--kv-heads", "--head-dim", "--value-dim", "--mask", "--pass",
        "--lower", "--transfer-dtype", "--return-lse", "--dtype", "--trace", "--compare", "--fold",
        "--bandwidth", "--weak", "--strategies", "--csv", "--run"}) {
    const CLI::Option* const option = verb.get_option_no_throw(flag);
    if (option == nullptr || option->count() == 0) continue;
    fail<InvalidArgument>(
        "{}: {} given with --serve, whose model has heads, bf16 and a causal mask; --world, --tp, "
        "--seq, --batch, --strategy and --layout are legal",
        verb.get_name(), flag);
  }
}

/// Ranks of a group along cp: all ranks, or the devices of the cluster, over tp.
int cp_of(const CLI::App& verb, int world, int tp) {
  if (world % tp == 0) return world / tp;
  fail<InvalidArgument>("{}: --tp {} of --world {}; a divisor is required; nearest: {}",
                        verb.get_name(), tp, world, nearest_divisor(world, tp));
}

}  // namespace

void add_serve_flags(CLI::App& verb, ServeFlags& flags) {
  const std::string group = "Inference";
  verb.add_option(
          "--serve", flags.model,
          "A prompt of --seq tokens, read and continued by this model: llama3-8b, .. or\n"
          "layers=L,hidden=E,heads=H,ffn=F,vocab=V; --world [all devices], --layout [zigzag]")
      ->group(group)
      ->check(not_empty());
  verb.add_option("--tp", flags.tp, "Ranks of a node that share heads and matrices [1]")
      ->needs("--serve")
      ->group(group)
      ->check(not_empty());
}

cost::Inference inference_of(const CLI::App& verb, const ServeFlags& flags,
                             const ProblemFlags& problem, const sim::Cluster& cluster) {
  refuse_with_model(verb);
  if (is_recipe(flags.model)) {
    fail<InvalidArgument>(
        "{}: recipe {} given with --serve; a known model, or "
        "layers=L,hidden=E,heads=H,ffn=F,vocab=V, is required; nearest: advise {} --step prefill",
        verb.get_name(), flags.model, flags.model);
  }
  const bool has_world = verb.count("--world") > 0;
  const int world = has_world ? parse_count("--world", problem.world) : cluster.devices();
  const int tp = parse_count("--tp", flags.tp);
  const int cp = cp_of(verb, world, tp);
  const std::string layout = verb.count("--layout") > 0 ? problem.layout : "zigzag";
  // Before the aggregate: g++ 12 destroys members twice if a later one throws.
  cost::Inference inference{.cp = cp, .tp = tp};
  inference.model = cost::parse_model(flags.model, cost::StepKind::Prefill);
  inference.prompt = parse_integer("--seq", problem.seq, {1});
  inference.sequences = parse_integer("--batch", problem.batch, {1});
  inference.strategy = plan::parse_strategy(problem.strategy);
  inference.layout = plan::parse_layout(layout);
  return inference;
}

}  // namespace armillary::cli
