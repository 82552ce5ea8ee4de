// evaluator.cpp: estimates from the paths of a few ranks, and simulations of all. A candidate is
// known by its text, under which its estimate is kept: neighbours of neighbours come up often.
#include "armillary/predict/tune/evaluator.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/parallel_for.h"
#include "armillary/plan/lower_bound.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/rank_path.h"
#include "armillary/predict/tune/space.h"

namespace armillary::tune {
namespace {

/// Devices that hold all ranks, whatever the placement.
int device_count(const Question& question) {
  return question.problem.world;
}

/// FLOPs of one visible pair of a query head in a pass.
double flops_per_pair(const plan::Problem& problem, plan::Pass pass) {
  const double d = problem.head_dim;
  const double e = problem.value_dim;
  return pass == plan::Pass::Forward    ? 2 * (d + e)
         : pass == plan::Pass::Backward ? 6 * d + 4 * e
                                        : 0;
}

/// The best rate of any kernel of the device, at any size.
double best_rate(const sim::DeviceSpec& device) {
  double best = 0;
  for (const sim::KernelCurve& curve : device.kernels) {
    best = std::max(best, curve.flops_per_s);
    for (const sim::RatePoint& point : curve.points) best = std::max(best, point.rate);
  }
  return best;
}

/// Bytes/s that a device can receive: all channels that end at it together.
double ingress(const Question& question) {
  const sim::Topology topology(question.cluster, device_count(question));
  std::map<int, double> channels;
  for (int from = 1; from < topology.devices(); ++from) {
    const sim::MessageRoute& route = topology.route(from, 0);
    const int last = route.channels.back();
    channels[last] = topology.channels()[last].bytes_per_s;
  }
  double sum = 0;
  for (const auto& [channel, rate] : channels) sum += rate;
  return sum;
}

}  // namespace

/// Estimates of one thread at a time. Candidates of one placement share the loads of links, those
/// of one layout the ranks looked at.
class Evaluator::Estimator {
 public:
  explicit Estimator(const Question& question)
      : question_(question), topology_(question.cluster, device_count(question)) {}

  Estimated estimate(const Candidate& candidate);

 private:
  const std::vector<plan::Rank>& looked_at(const plan::Problem& problem);

  const Question& question_;
  sim::Topology topology_;
  std::map<int, sim::RankPaths> paths_;                       ///< By stride of the placement.
  std::map<std::string, std::vector<plan::Rank>> looked_at_;  ///< By layout.
};

/// The first rank, the middle one, the last one, and the one with most visible pairs.
const std::vector<plan::Rank>& Evaluator::Estimator::looked_at(const plan::Problem& problem) {
  const auto [at, is_new] = looked_at_.try_emplace(to_string(problem.layout));
  if (!is_new) return at->second;
  const plan::Shards shards = plan::shards(problem.layout, problem.mask, problem.world);
  std::int64_t most = -1;
  plan::Rank busiest = 0;
  for (plan::Rank r = 0; r < problem.world && problem.mask.kv_len() > 0; ++r) {
    const std::int64_t area =
        problem.mask.area(shards.q[r], {plan::run_of({0, problem.mask.kv_len()})});
    if (area <= most) continue;
    most = area;
    busiest = r;
  }
  std::vector<plan::Rank>& ranks = at->second;
  ranks = {0, problem.world / 2, problem.world - 1, busiest};
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Evaluator::Estimated Evaluator::Estimator::estimate(const Candidate& candidate) {
  const int world = question_.problem.world;
  const plan::Planner planner(problem_of(question_, candidate), candidate.strategy);
  const std::vector<plan::Rank>& ranks = looked_at(planner.problem());
  sim::RankPaths& paths =
      paths_.try_emplace(candidate.placement.stride, topology_, devices(candidate.placement, world))
          .first->second;
  Estimated result;
  Evaluation& evaluation = result.evaluation;
  evaluation.candidate = candidate;
  // Each pass ends with its slowest rank; bytes are those of both passes of one rank.
  std::vector<std::int64_t> sent_bytes(ranks.size());
  for (const plan::Pass pass : question_.passes) {
    double bound = 0;
    double estimate = 0;
    std::int64_t messages = 0;
    const std::vector<sim::RankPath> of_ranks = paths.paths(planner, pass, ranks);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      bound = std::max(bound, of_ranks[r].bound_s);
      estimate = std::max(estimate, of_ranks[r].estimate_s);
      messages += of_ranks[r].messages;
      sent_bytes[r] += of_ranks[r].sent_bytes;
      evaluation.memory_bytes = std::max(evaluation.memory_bytes, of_ranks[r].memory_bytes);
    }
    evaluation.bound_s += bound;
    evaluation.estimate_s += estimate;
    result.messages += messages * world / static_cast<std::int64_t>(ranks.size());
  }
  evaluation.sent_bytes = *std::max_element(sent_bytes.begin(), sent_bytes.end());
  return result;
}

Evaluator::Evaluator(const Question& question) : question_(question) {
  validate(question.problem);
  idle_.push_back(std::make_unique<Estimator>(question));
}

Evaluator::~Evaluator() = default;

double Evaluator::memory_limit() const {
  return question_.cluster.device.memory_bytes - static_cast<double>(question_.reserved_bytes);
}

Outcome Evaluator::outcome_of(const Evaluation& evaluation, Outcome otherwise) const {
  if (!evaluation.error.empty()) return Outcome::Wrong;
  return static_cast<double>(evaluation.memory_bytes) <= memory_limit() ? otherwise
                                                                        : Outcome::TooLarge;
}

std::vector<Evaluation> Evaluator::estimate(const std::vector<Candidate>& candidates) {
  std::vector<const Candidate*> unknown;
  for (const Candidate& candidate : candidates) {
    if (!estimated_.contains(to_string(candidate))) unknown.push_back(&candidate);
  }
  std::vector<Estimated> items(unknown.size());
  std::mutex mutex;
  parallel_for(static_cast<int>(unknown.size()), [&](int i) {
    std::unique_ptr<Estimator> estimator;
    {
      const std::lock_guard lock(mutex);
      if (!idle_.empty()) {
        estimator = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!estimator) estimator = std::make_unique<Estimator>(question_);
    items[i] = estimator->estimate(*unknown[i]);
    const std::lock_guard lock(mutex);
    idle_.push_back(std::move(estimator));
  });
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    estimated_.emplace(to_string(*unknown[i]), std::move(items[i]));
  }
  std::vector<Evaluation> evaluations;
  evaluations.reserve(candidates.size());
  for (const Candidate& candidate : candidates) {
    evaluations.push_back(estimated_.at(to_string(candidate)).evaluation);
  }
  return evaluations;
}

std::int64_t Evaluator::messages(const Candidate& candidate) const {
  return estimated_.at(to_string(candidate)).messages;
}

void Evaluator::simulate(Evaluation& evaluation) {
  const plan::Planner planner(problem_of(question_, evaluation.candidate),
                              evaluation.candidate.strategy);
  // Ranks that are alike are folded if they are on devices in order.
  const int world = question_.problem.world;
  sim::SimulateOptions options{.fold = world > kLargeWorld};
  if (evaluation.candidate.placement != Placement{}) {
    options.placement = devices(evaluation.candidate.placement, world);
  }
  std::vector<sim::Timeline> timelines(question_.passes.size());
  evaluation.times = {};
  try {
    parallel_for(static_cast<int>(timelines.size()), [&](int pass) {
      timelines[pass] = sim::simulate(planner, question_.passes[pass], question_.cluster, options);
    });
  } catch (const PlanError& error) {
    evaluation.error = error.what();
    return;
  }
  for (const sim::Timeline& timeline : timelines) {
    // A pass ends with its last rank; messages are exposed on all.
    double compute = 0;
    double exposed = 0;
    for (const sim::RankTimeline& rank : timeline.ranks) {
      compute = std::max(compute, rank.compute_s);
      exposed += rank.exposed_s / static_cast<double>(timeline.ranks.size());
      evaluation.memory_bytes =
          std::max(evaluation.memory_bytes, rank.slot_bytes + rank.external_bytes);
    }
    evaluation.times.total_s += timeline.end_s;
    evaluation.times.compute_s += compute;
    evaluation.times.exposed_s += exposed;
  }
}

void simulate_all(const Question& question, Answer& answer, std::vector<std::size_t>& evaluations) {
  Evaluator evaluator(question);
  std::erase_if(evaluations, [&](std::size_t r) {
    Evaluation& evaluation = answer.evaluations.at(r);
    if (evaluation.simulated()) return false;
    evaluator.simulate(evaluation);
    evaluation.outcome = evaluator.outcome_of(evaluation, Outcome::Slower);
    return !evaluation.can_run();
  });
}

double floor_s(const Question& question) {
  const plan::Problem& problem = question.problem;
  const double pairs = static_cast<double>(problem.mask.area()) * problem.heads *
                       static_cast<double>(problem.batch) / problem.world;
  // Compute of all passes at the best rate; messages of forward may hide behind its compute.
  double compute = 0;
  double forward = 0;
  for (const plan::Pass pass : question.passes) {
    const double seconds =
        pairs * flops_per_pair(problem, pass) / best_rate(question.cluster.device);
    compute += seconds;
    if (pass == plan::Pass::Forward) forward = seconds;
  }
  const bool bounded = problem.world > 1 && problem.mask.q_len() == problem.mask.kv_len() &&
                       std::find(question.passes.begin(), question.passes.end(),
                                 plan::Pass::Forward) != question.passes.end();
  // Ranks of a world this large are bounded one by one only with a full mask, which is a formula.
  constexpr int kManyRanks = 64;
  const bool too_many = problem.world > kManyRanks && !problem.mask.shows_all();
  // A link with a bucket may pass some of the bytes at once.
  if (!bounded || too_many || question.cluster.has_bursts()) return compute;
  double bytes = std::numeric_limits<double>::infinity();
  for (const plan::Layout& layout : layouts(question, LayoutChoice::All)) {
    plan::Problem with_layout = problem;
    with_layout.layout = layout;
    bytes = std::min(bytes, plan::forward_lower_bound(with_layout));
  }
  return compute + std::max(0.0, bytes / ingress(question) - forward);
}

}  // namespace armillary::tune
