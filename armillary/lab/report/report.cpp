#include "armillary/lab/report/report.h"

#include <fmt/format.h>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/lab/report/page.h"

namespace armillary::report {

std::string to_html(const Report& report) {
  ARMILLARY_CHECK(!report.passes.empty());
  const plan::Plan& plan = report.passes.front().plan;
  if (plan.problem.world > kMaxRanks) {
    fail<InvalidArgument>("report: world {}; at most {} ranks fit into a page", plan.problem.world,
                          kMaxRanks);
  }
  return assembled({.html = page_html(),
                    .scripts = page_scripts(),
                    .title = fmt::format("{} on {} of {}", plan.strategy,
                                         count_of(plan.problem.world, "rank"), report.cluster.name),
                    .data = to_json(report)});
}

}  // namespace armillary::report
