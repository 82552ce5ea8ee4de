// automatic.cpp: a text names a cluster; the strategy alone is free.
#include "armillary/tune/automatic.h"

#include <fmt/format.h>

#include <cstdlib>

#include "armillary/core/error.h"
#include "armillary/tune/cache.h"

namespace armillary::tune {
namespace {

constexpr std::string_view kWithCluster = "auto:cluster=";

/// The name of the cluster that a text asks for.
std::string cluster_name(std::string_view text) {
  if (text.starts_with(kWithCluster)) return std::string(text.substr(kWithCluster.size()));
  const char* const given = std::getenv("ARMILLARY_CLUSTER");
  if (given != nullptr && *given != '\0') return given;
  fail<InvalidArgument>(
      "strategy: auto without a cluster; auto:cluster=NAME (a preset or a .toml file), the "
      "environment variable ARMILLARY_CLUSTER, or auto:traffic is required");
}

}  // namespace

bool is_automatic(std::string_view text) {
  return text == "auto" || text.starts_with(kWithCluster);
}

AutomaticChoice choose(std::string_view text, const plan::Problem& problem) {
  const Question question{.problem = problem,
                          .cluster = sim::load_cluster(cluster_name(text)),
                          .free = {.layout = false, .wire = false, .placement = false}};
  const auto [answer, from_cache] = tune(question);
  const Rival& chosen = answer.chosen();
  AutomaticChoice choice{.strategy = chosen.candidate.strategy};
  choice.line = fmt::format("strategy {} on {}: {}, {:.3f} ms a layer ({})", text,
                            question.cluster.name, to_string(choice.strategy),
                            chosen.times.total_s * 1e3, from_cache ? "known" : "simulated");
  for (const Rival& rival : answer.rivals) {
    if (!rival.simulated() || rival.candidate.strategy.name == choice.strategy.name) continue;
    choice.line +=
        fmt::format("; {} takes {:.3f} times as long", to_string(rival.candidate.strategy),
                    rival.times.total_s / chosen.times.total_s);
    break;
  }
  return choice;
}

}  // namespace armillary::tune
