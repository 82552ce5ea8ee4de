// search.cpp: candidates are kept in one list with all that is known about each, and are referred
// to by their place in it. Everything that a search decides depends on the question alone: no clock
// and no random number is read, and equal estimates keep the order of the registry.
#include "armillary/predict/tune/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/strategies/options.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/predict/tune/evaluator.h"
#include "armillary/predict/tune/space.h"

namespace armillary::tune {
namespace {

/// Candidates whose neighbours are estimated before anything is simulated.
constexpr std::size_t kPromising = 8;
/// A candidate is not simulated if its estimate is so many times the best simulated time, unless
/// the question names the strategies: those of one strategy are ordered by simulation alone ..
constexpr double kFar = 1.25;
/// .. or if its bound leaves less than this share to gain. First candidates (space.h) are not
/// skipped for it, as people compare the choice with those, but above kLargeWorld ranks.
constexpr double kWorthwhile = 0.005;
/// Limit of candidates whose neighbours are looked at: the best simulated one of each kind_of(), if
/// it takes at most kNear times as long as the best. Above kLargeWorld ranks the best alone.
constexpr std::size_t kWalkers = 24;
constexpr double kNear = 2.5;
/// Messages that a search simulates at most, about 10 us each with planning. The first kAlways
/// candidates and those given are exempt.
constexpr std::int64_t kMessages = 200'000;
constexpr std::size_t kAlways = 3;
/// A layout that is not among the first (space.h) is chosen only if it gains more than this share.
/// Layouts of equal work were measured some percent apart where simulation saw less than one.
constexpr double kLayoutGain = 0.02;

class Search {
 public:
  explicit Search(const Question& question)
      : question_(question),
        evaluator_(question),
        first_layouts_(layouts(question, LayoutChoice::First)) {
    if (question.problem.world > kMostRanks) {
      fail<InvalidArgument>("tune: {} ranks; at most {} are possible", question.problem.world,
                            kMostRanks);
    }
  }

  /// Estimates first candidates and, twice, neighbours of the promising ones; then simulates, and
  /// again while a walker has a new neighbour.
  Answer run() {
    add(first_candidates(question_));
    if (question_.problem.world <= kLargeWorld) first_ = evaluations_.size();
    for (const std::size_t r : promising(kPromising)) add_neighbours(r);
    for (const std::size_t r : promising(kPromising)) add_neighbours(r);
    if (promising(1).empty()) refuse();
    simulate_promising();
    while (add_neighbours_of_walkers()) simulate_promising();
    simulate_given();
    return answer();
  }

  /// Simulates the whole space, but for candidates that do not fit.
  Answer run_exhaustively() {
    add(whole_space(question_));
    if (promising(1).empty()) refuse();
    for (const std::size_t r : promising(evaluations_.size())) simulate(r);
    if (!best_) refuse();
    return answer();
  }

 private:
  /// Estimates candidates that are new; true if there are any.
  bool add(const std::vector<Candidate>& candidates) {
    std::vector<Candidate> unknown;
    for (const Candidate& candidate : candidates) {
      const auto is_it = [&](const Candidate& other) { return other == candidate; };
      const auto of_evaluation = [](const Evaluation& evaluation) -> const Candidate& {
        return evaluation.candidate;
      };
      if (std::ranges::any_of(evaluations_, is_it, of_evaluation)) continue;
      if (std::ranges::none_of(unknown, is_it)) unknown.push_back(candidate);
    }
    for (Evaluation& evaluation : evaluator_.estimate(unknown)) {
      evaluation.outcome = evaluator_.outcome_of(evaluation, Outcome::Estimated);
      evaluations_.push_back(std::move(evaluation));
    }
    return !unknown.empty();
  }

  bool add_neighbours(std::size_t r) {
    return add(neighbours(question_, Candidate(evaluations_[r].candidate)));
  }

  /// The best simulated evaluation of each kind, of those that are not far from the best of all;
  /// the best of all is the first. Estimates do not see how much messages wait for each other on
  /// shared links, so the way to the best choice may begin at a cut that is not the best yet.
  std::vector<std::size_t> walkers() const {
    std::vector<std::size_t> order;
    const double most_s = kNear * evaluations_[*best_].times.total_s;
    for (std::size_t r = 0; r < evaluations_.size(); ++r) {
      const Evaluation& evaluation = evaluations_[r];
      const bool near = evaluation.simulated() && evaluation.times.total_s <= most_s;
      if (near && evaluation.can_run()) order.push_back(r);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return evaluations_[a].times.total_s < evaluations_[b].times.total_s;
    });
    std::set<std::string> known;
    std::erase_if(order, [&](std::size_t r) {
      return !known.insert(kind_of(evaluations_[r].candidate)).second;
    });
    const bool is_large = question_.problem.world > kLargeWorld;
    order.resize(std::min(order.size(), is_large ? 1 : kWalkers));
    return order;
  }

  /// Name, placement, sizes and order of the axes: `usp 1 4 false`. Two changes may pay where
  /// neither does alone, so the neighbours of the best candidate alone are not enough.
  static std::string kind_of(const Candidate& candidate) {
    const plan::Strategy& strategy = candidate.strategy;
    std::string text = fmt::format("{} {}", strategy.name, candidate.placement.stride);
    if (strategy.name == "usp") {
      const auto usp = strategy.as<plan::UspOptions>();
      text += fmt::format(" {} {}", usp.u, usp.inner == plan::UspInner::Ring);
    } else if (strategy.name == "grid") {
      const auto grid = strategy.as<plan::GridOptions>();
      text += fmt::format(" {} {} {}", grid.u, grid.rq, grid.rk);
    } else if (strategy.name == "tokenring") {
      text += fmt::format(" {}", strategy.as<plan::TokenringOptions>().ring_inside);
    }
    return text;
  }

  bool add_neighbours_of_walkers() {
    bool added = false;
    for (const std::size_t r : walkers()) added |= add_neighbours(r);
    return added;
  }

  /// Indices of the `count` evaluations with the least estimates, of those that fit.
  std::vector<std::size_t> promising(std::size_t count) const {
    std::vector<std::size_t> order;
    for (std::size_t r = 0; r < evaluations_.size(); ++r) {
      if (evaluations_[r].can_run()) order.push_back(r);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return evaluations_[a].estimate_s < evaluations_[b].estimate_s;
    });
    order.resize(std::min(order.size(), count));
    return order;
  }

  /// Only a simulation sees the memory of all ranks, so a evaluation may turn out too large here.
  void simulate(std::size_t r) {
    Evaluation& evaluation = evaluations_[r];
    evaluator_.simulate(evaluation);
    messages_ += evaluator_.messages(evaluation.candidate);
    ++simulated_;
    evaluation.outcome = evaluator_.outcome_of(evaluation, Outcome::Slower);
    if (!evaluation.can_run()) return;
    if (!best_ || weighed_s(evaluation) < weighed_s(evaluations_[*best_])) best_ = r;
  }

  /// The factor on the times of a candidate by which the choice is made.
  double weight(const Evaluation& evaluation) const {
    const auto entry = std::ranges::find(first_layouts_, evaluation.candidate.layout);
    return entry != first_layouts_.end() ? 1 : 1 + kLayoutGain;
  }
  double weighed_s(const Evaluation& evaluation) const {
    return evaluation.times.total_s * weight(evaluation);
  }

  /// Simulates by ascending estimate whatever may still win.
  void simulate_promising() {
    for (const std::size_t r : promising(evaluations_.size())) {
      Evaluation& evaluation = evaluations_[r];
      if (evaluation.simulated()) continue;
      const bool first_few = simulated_ < kAlways;
      if (best_) {
        const double best_s = weighed_s(evaluations_[*best_]) / weight(evaluation);
        const double share = r < first_ ? 0 : kWorthwhile;
        evaluation.outcome =
            evaluation.bound_s >= best_s * (1 - share) ? Outcome::Bounded : Outcome::Estimated;
        if (evaluation.outcome == Outcome::Bounded) continue;
        const bool far = question_.names.empty() && evaluation.estimate_s > kFar * best_s;
        if (far && !first_few) continue;
        if (!first_few && messages_ + evaluator_.messages(evaluation.candidate) > kMessages)
          continue;
      }
      simulate(r);
    }
    // A candidate whose estimate fits may prove too large when all ranks are simulated.
    if (!best_) refuse();
  }

  /// Simulates the strategies that the question names, if they fit.
  /// @throws InvalidArgument for one that cannot solve the problem.
  void simulate_given() {
    for (const plan::Strategy& strategy : question_.against) {
      for (const plan::Layout& layout : first_layouts_) {
        const Candidate candidate{.strategy = strategy,
                                  .layout = layout,
                                  .transfer_dtype = question_.problem.transfer_dtype};
        add({candidate});
        const auto value = std::find_if(
            evaluations_.begin(), evaluations_.end(),
            [&](const Evaluation& evaluation) { return evaluation.candidate == candidate; });
        if (!value->simulated() && value->can_run())
          simulate(static_cast<std::size_t>(value - evaluations_.begin()));
      }
    }
  }

  /// The error if nothing fits, about the candidate that needs least memory.
  [[noreturn]] void refuse() const {
    const auto least = std::min_element(
        evaluations_.begin(), evaluations_.end(), [](const Evaluation& a, const Evaluation& b) {
          // Wrong plans come last: they are the reason only if there are no others.
          return std::pair(a.outcome == Outcome::Wrong, a.memory_bytes) <
                 std::pair(b.outcome == Outcome::Wrong, b.memory_bytes);
        });
    if (least == evaluations_.end()) {
      std::set<std::string> legal;
      for (const plan::Strategy& strategy : plan::legal_strategies(question_.problem)) {
        if (strategy.name != "auto") legal.insert(strategy.name);
      }
      fail<InvalidArgument>("tune: {}; strategies that solve the problem: {}",
                            fmt::join(left_out(question_), "; "), fmt::join(legal, ", "));
    }
    if (least->outcome == Outcome::Wrong) throw PlanError(least->error);
    const Candidate& candidate = least->candidate;
    // check_fits() finds the longest sequence, and says so in its error.
    if (question_.with_length) {
      sim::Cluster cluster = question_.cluster;
      cluster.device.memory_bytes = evaluator_.memory_limit();
      const auto longer = [&](std::int64_t seq) {
        std::optional<plan::Problem> problem = question_.with_length(seq);
        if (problem) {
          problem->layout = candidate.layout;
          problem->transfer_dtype = candidate.transfer_dtype;
        }
        return problem;
      };
      cost::check_fits({.problem = longer,
                        .seq = question_.problem.mask.q_len(),
                        .strategy = candidate.strategy,
                        .passes = question_.passes},
                       cluster);
    }
    fail<InvalidArgument>(
        "{} on {}: {}: {}", to_string(candidate.strategy), question_.cluster.name,
        count_of(question_.problem.mask.q_len(), "token"),
        cost::does_not_fit(static_cast<double>(least->memory_bytes), evaluator_.memory_limit()));
  }

  /// The evaluations in the order that Answer promises.
  Answer answer() {
    evaluations_[*best_].outcome = Outcome::Chosen;
    const auto rank = [](const Evaluation& evaluation) {
      if (evaluation.outcome == Outcome::Chosen) return std::pair(0, 0.0);
      if (!evaluation.can_run()) return std::pair(3, evaluation.estimate_s);
      return evaluation.simulated() ? std::pair(1, evaluation.times.total_s)
                                    : std::pair(2, evaluation.estimate_s);
    };
    std::stable_sort(evaluations_.begin(), evaluations_.end(),
                     [&](const Evaluation& a, const Evaluation& b) { return rank(a) < rank(b); });
    return {.evaluations = std::move(evaluations_), .floor_s = floor_s(question_)};
  }

  const Question& question_;
  Evaluator evaluator_;
  const std::vector<plan::Layout> first_layouts_;
  std::vector<Evaluation> evaluations_;
  std::size_t first_ =
      0;  ///< So many evaluations, which come first, may not be skipped for little.
  std::optional<std::size_t> best_;
  std::int64_t messages_ = 0;
  std::size_t simulated_ = 0;
};

}  // namespace

Answer search(const Question& question) {
  return Search(question).run();
}

Answer search_exhaustively(const Question& question) {
  return Search(question).run_exhaustively();
}

}  // namespace armillary::tune
