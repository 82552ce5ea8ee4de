// report.h: a plan, its simulated timeline and a measured one as one HTML file to look at.
//
//   Plan, Timeline --to_json--> data --.
//   flight files --measured.h-> data --+--to_html--> a page without any reference to the network
//   page/*.html, css, js --------------'
//
// The page has the plan as a grid and as nested rings, the tiles that each rank holds, the coverage
// of queries x keys, the lanes over time, the traffic of each link, memory over time, and tables of
// strategies and of the phases of inference. One cursor, a step of the plan or a time, moves
// through all of them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/lab/report/measured.h"
#include "armillary/plan/plan.h"
#include "armillary/predict/sim/cluster.h"
#include "armillary/predict/sim/compare.h"
#include "armillary/predict/sim/timeline.h"

namespace armillary::report {

/// The largest world of a report. A page for 256 ranks has tens of megabytes.
inline constexpr int kMaxRanks = 256;

/// One pass: a lowered plan, its timeline of all ranks with TimelineParts::ops and
/// TimelineParts::flows, and the same pass of a finished run.
struct ReportedPass {
  plan::Plan plan;
  sim::Timeline timeline;
  std::optional<MeasuredPass> measured = std::nullopt;
};

/// A phase of inference: seconds by term.
struct ReportedPhase {
  std::string name;
  double total_s = 0;
  std::vector<std::pair<std::string, double>> terms{};
};

/// The content of a page.
struct Report {
  std::string mask;  ///< The mask as the user wrote it; a plan has only its bands.
  sim::Cluster cluster;
  std::vector<ReportedPass> passes;              ///< At least one; all of one problem.
  std::vector<sim::StrategyTimes> strategies{};  ///< Rows of the table; may be empty.
  /// Sentences about the two machines, if a run is beside the simulation.
  std::string machines{};
  /// Both phases of a prompt whose prefill has the forward pass in each layer; empty: none.
  std::vector<ReportedPhase> phases{};
  std::vector<std::string> phase_notes{};  ///< Sentences below them.
};

/// The data of the page as one JSON object, times in microseconds:
///
///   bands                       of the mask: [q begin, q end, k begin, k end, lo, hi]
///   q_blocks, kv_blocks         [owner, [begin, count, step, width, ..]]
///   kinds, tensors              names by the numbers that ops and tiles have
///   passes[].ranks[].ops[]      [kind, lane, step, start, end, ..]; messages add peer, bytes,
///                               [tiles]; ops that attend add visible pairs, q view, k view
///   a view                      [first head, end of heads, first block, last block, ..]
///   passes[].ranks[].tiles[]    [tensor, partial, first head, end of heads, [blocks], first op,
///                               last step, end, there at the begin, there at the end]
///   passes[].ranks[].words[]    of the grid: [step, text, [ops]]
///   passes[].ranks[].memory     [time, bytes, ..]
///   passes[].channels[]         name, bytes_per_s, bytes, load: percent of the capacity in equal
///                               parts of the time
///   passes[].measured           run, step, call, end_us, ranks: [start, end, ..] by op
///   machines                    where the run was measured and simulated; empty without a run
///   strategies[]                name, total_us, passes: [end, exposed, bytes sent], memory_bytes,
///                               fits
///   phases[]                    of inference: name, total_us, terms: [name, us]
///   phase_notes[]               sentences
std::string to_json(const Report& report);

/// The whole page. @throws InvalidArgument for more than kMaxRanks ranks.
std::string to_html(const Report& report);

}  // namespace armillary::report
