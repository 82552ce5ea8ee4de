// Points are simulated one after the other; within one, all strategies on the same cluster. A
// strategy that does not solve the problem of a point is no error: ranges cross such places.
#include "armillary/lab/sweep/sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::sweep {
namespace {

/// The cluster with the bandwidth of the point, and nodes enough for its ranks.
sim::Cluster cluster_of(sim::Cluster cluster, const Point& point) {
  const int per_node = cluster.devices_per_node;
  cluster.nodes = std::max(cluster.nodes, (point.world + per_node - 1) / per_node);
  for (sim::LinkRule& link : cluster.links) {
    link.bytes_per_s *= point.bandwidth;
    link.flow_bytes_per_s *= point.bandwidth;
    for (sim::RatePoint& rate : link.flow_rates) rate.rate *= point.bandwidth;
  }
  return cluster;
}

/// Strategies of the problem whose name, or name with keys, is listed.
std::vector<plan::Strategy> strategies_of(const plan::Problem& problem,
                                          const std::vector<std::string>& names) {
  std::vector<plan::Strategy> all = plan::legal_strategies(problem);
  if (names.empty()) return all;
  std::erase_if(all, [&](const plan::Strategy& strategy) {
    return std::none_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == strategy.name || name == to_string(strategy);
    });
  });
  return all;
}

/// Refuses a name that no strategy has: at a point it may be legal or not, here it must exist.
void check_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto infos = plan::strategies();
    const bool known = std::any_of(infos.begin(), infos.end(),
                                   [&](const auto& info) { return info.name == name; });
    if (!known) plan::parse_strategy(name);  // Throws for what is no strategy either.
  }
}

/// Work of one pass, counting visible pairs only.
double flops(const plan::Problem& problem, plan::Pass pass) {
  const double pairs =
      static_cast<double>(problem.mask.area()) * problem.heads * static_cast<double>(problem.batch);
  if (pass == plan::Pass::Forward) return 2 * pairs * (problem.head_dim + problem.value_dim);
  if (pass == plan::Pass::Backward) return pairs * (6 * problem.head_dim + 4 * problem.value_dim);
  return 0;
}

/// A text as a field of a table.
std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) {
    field += c;
    if (c == '"') field += c;
  }
  return field + "\"";
}

}  // namespace

std::vector<Point> points(const Ranges& ranges) {
  constexpr std::size_t kMostPoints = 10'000;
  const std::size_t count =
      ranges.worlds.size() * ranges.seqs.size() * ranges.heads.size() * ranges.bandwidths.size();
  if (count > kMostPoints) {
    fail<InvalidArgument>("sweep: the ranges have {} points; at most {} are allowed", count,
                          kMostPoints);
  }
  std::vector<Point> all;
  for (const double bandwidth : ranges.bandwidths) {
    for (const int heads : ranges.heads) {
      for (const std::int64_t seq : ranges.seqs) {
        for (const int world : ranges.worlds) {
          const std::int64_t length = ranges.weak ? seq * world / ranges.worlds.front() : seq;
          all.push_back({.world = world, .seq = length, .heads = heads, .bandwidth = bandwidth});
        }
      }
    }
  }
  return all;
}

std::vector<SweepRow> sweep(const SweepQuestion& question) {
  check_names(question.strategies);
  std::vector<SweepRow> rows;
  for (const Point& point : question.points) {
    const plan::Problem problem = question.problem(point);
    const sim::Cluster cluster = cluster_of(question.cluster, point);
    double work = 0;
    for (const plan::Pass pass : question.passes) work += flops(problem, pass);
    const std::size_t first = rows.size();
    for (const plan::Strategy& strategy : strategies_of(problem, question.strategies)) {
      SweepRow row{.point = point,
                   .kv_seq = problem.mask.kv_len(),
                   .kv_heads = problem.kv_heads,
                   .times = strategy_times(problem, strategy, cluster, question.passes)};
      const double total_s = row.times.total_s();
      if (total_s > 0) row.flops_per_rank = work / problem.world / total_s;
      rows.push_back(std::move(row));
    }
    // The fastest first, within the rows of this point.
    std::stable_sort(
        rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(),
        [](const SweepRow& a, const SweepRow& b) { return a.times.total_s() < b.times.total_s(); });
  }
  if (rows.empty()) {
    fail<InvalidArgument>("sweep: none of the strategies solves a problem of the ranges");
  }
  return rows;
}

std::string to_csv(const std::vector<SweepRow>& rows, const std::vector<plan::Pass>& passes,
                   const std::vector<Constant>& constants) {
  std::string text = "world,seq,heads,bandwidth,strategy,total_s";
  for (const plan::Pass pass : passes) {
    text += fmt::format(",{0}_s,{0}_exposed_s,{0}_sent_bytes", to_string(pass));
  }
  // The columns of a row that are not of one pass.
  text += ",memory_bytes,fits,flops_per_rank,kv_seq,kv_heads";
  std::string same;
  for (const Constant& constant : constants) {
    text += "," + constant.name;
    same += "," + quoted(constant.text);
  }
  text += '\n';
  for (const SweepRow& row : rows) {
    text += fmt::format("{},{},{},{},{},{:.9g}", row.point.world, row.point.seq, row.point.heads,
                        row.point.bandwidth, quoted(to_string(row.times.strategy)),
                        row.times.total_s());
    for (const sim::PassTime& pass : row.times.passes) {
      text += fmt::format(",{:.9g},{:.9g},{}", pass.end_s, pass.exposed_s, pass.sent_bytes);
    }
    text += fmt::format(",{},{},{:.6g},{},{}{}\n", row.times.memory_bytes, row.times.fits ? 1 : 0,
                        row.flops_per_rank, row.kv_seq, row.kv_heads, same);
  }
  return text;
}

}  // namespace armillary::sweep
