// A plan made, proved and simulated by the installed library, without libtorch.
#include <armillary/plan/strategies/strategy.h>
#include <armillary/plan/text.h>
#include <armillary/plan/verify/verify.h>
#include <armillary/predict/sim/cluster.h>
#include <armillary/predict/sim/engine.h>
#include <armillary/proof/digest.h>
#include <armillary/version.h>

#include <iostream>
#include <vector>

using namespace armillary;

int main() {
  if (proof::version() != ARMILLARY_VERSION)
    return 1;  // headers of one version, library of another
  const plan::Problem problem{.world = 4,
                              .heads = 8,
                              .kv_heads = 2,
                              .head_dim = 64,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::parse_mask("causal", {4096, 4096}),
                              .layout = plan::parse_layout("zigzag")};
  const plan::Plan ring =
      plan::make_plan(problem, plan::parse_strategy("ring"), plan::Pass::Forward);
  const std::vector<plan::Diagnostic> diagnostics = plan::verify(ring);
  const sim::Timeline timeline = sim::simulate(ring, sim::load_cluster("h200"));
  std::cout << "armillary " ARMILLARY_VERSION "\n"
            << plan::to_string(ring) << diagnostics.size() << " faults; " << timeline.end_s * 1e6
            << " us on a node of H200\n";
  return diagnostics.empty() ? 0 : 1;
}
