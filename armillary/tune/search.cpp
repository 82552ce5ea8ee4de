// search.cpp: candidates are kept in one list with all that is known about each, and are referred
// to by their place in it. Everything that a search decides depends on the question alone: no clock
// and no random number is read, and equal estimates keep the order of the registry.
#include "armillary/tune/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/sim/memory.h"
#include "armillary/tune/evaluator.h"
#include "armillary/tune/space.h"

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
    if (question_.problem.world <= kLargeWorld) first_ = rivals_.size();
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
    for (const std::size_t r : promising(rivals_.size())) simulate(r);
    if (!best_) refuse();
    return answer();
  }

 private:
  /// Estimates candidates that are new; true if there are any.
  bool add(const std::vector<Candidate>& candidates) {
    std::vector<Candidate> unknown;
    for (const Candidate& candidate : candidates) {
      const auto is_it = [&](const Candidate& other) { return other == candidate; };
      const auto of_rival = [](const Rival& rival) -> const Candidate& { return rival.candidate; };
      if (std::ranges::any_of(rivals_, is_it, of_rival)) continue;
      if (std::ranges::none_of(unknown, is_it)) unknown.push_back(candidate);
    }
    for (Rival& rival : evaluator_.estimate(unknown)) {
      rival.fate = evaluator_.fate_of(rival, Fate::Estimated);
      rivals_.push_back(std::move(rival));
    }
    return !unknown.empty();
  }

  bool add_neighbours(std::size_t r) {
    return add(neighbours(question_, Candidate(rivals_[r].candidate)));
  }

  /// The best simulated rival of each kind, of those that are not far from the best of all; the
  /// best of all is the first. Estimates do not see how much messages wait for each other on shared
  /// links, so the way to the best choice may begin at a cut that is not the best yet.
  std::vector<std::size_t> walkers() const {
    std::vector<std::size_t> order;
    const double most_s = kNear * rivals_[*best_].times.total_s;
    for (std::size_t r = 0; r < rivals_.size(); ++r) {
      const Rival& rival = rivals_[r];
      const bool near = rival.simulated() && rival.times.total_s <= most_s;
      if (near && rival.can_run()) order.push_back(r);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return rivals_[a].times.total_s < rivals_[b].times.total_s;
    });
    std::set<std::string> known;
    std::erase_if(
        order, [&](std::size_t r) { return !known.insert(kind_of(rivals_[r].candidate)).second; });
    const bool is_large = question_.problem.world > kLargeWorld;
    order.resize(std::min(order.size(), is_large ? 1 : kWalkers));
    return order;
  }

  /// Name, placement, sizes and order of the axes: `usp 1 4`. Two changes may pay where neither
  /// does alone, so the neighbours of the best candidate alone are not enough.
  static std::string kind_of(const Candidate& candidate) {
    const plan::Strategy& strategy = candidate.strategy;
    std::string text = fmt::format("{} {}", strategy.name, candidate.placement.stride);
    for (const char* key : {"u", "rq", "rk", "inner"}) {
      const auto found = strategy.keys.find(key);
      if (found != strategy.keys.end()) text += " " + found->second;
    }
    return text;
  }

  bool add_neighbours_of_walkers() {
    bool added = false;
    for (const std::size_t r : walkers()) added |= add_neighbours(r);
    return added;
  }

  /// Indices of the `count` rivals with the least estimates, of those that fit.
  std::vector<std::size_t> promising(std::size_t count) const {
    std::vector<std::size_t> order;
    for (std::size_t r = 0; r < rivals_.size(); ++r) {
      if (rivals_[r].can_run()) order.push_back(r);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return rivals_[a].estimate_s < rivals_[b].estimate_s;
    });
    order.resize(std::min(order.size(), count));
    return order;
  }

  /// Only a simulation sees the memory of all ranks, so a rival may turn out too large here.
  void simulate(std::size_t r) {
    Rival& rival = rivals_[r];
    evaluator_.simulate(rival);
    messages_ += evaluator_.messages(rival.candidate);
    ++simulated_;
    rival.fate = evaluator_.fate_of(rival, Fate::Slower);
    if (!rival.can_run()) return;
    if (!best_ || weighed_s(rival) < weighed_s(rivals_[*best_])) best_ = r;
  }

  /// The factor on the times of a candidate by which the choice is made.
  double weight(const Rival& rival) const {
    const auto found = std::ranges::find(first_layouts_, rival.candidate.layout);
    return found != first_layouts_.end() ? 1 : 1 + kLayoutGain;
  }
  double weighed_s(const Rival& rival) const { return rival.times.total_s * weight(rival); }

  /// Simulates by ascending estimate whatever may still win.
  void simulate_promising() {
    for (const std::size_t r : promising(rivals_.size())) {
      Rival& rival = rivals_[r];
      if (rival.simulated()) continue;
      const bool first_few = simulated_ < kAlways;
      if (best_) {
        const double best_s = weighed_s(rivals_[*best_]) / weight(rival);
        const double share = r < first_ ? 0 : kWorthwhile;
        rival.fate = rival.bound_s >= best_s * (1 - share) ? Fate::Bounded : Fate::Estimated;
        if (rival.fate == Fate::Bounded) continue;
        const bool far = question_.names.empty() && rival.estimate_s > kFar * best_s;
        if (far && !first_few) continue;
        if (!first_few && messages_ + evaluator_.messages(rival.candidate) > kMessages) continue;
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
        const Candidate candidate{
            .strategy = strategy, .layout = layout, .wire = question_.problem.wire};
        add({candidate});
        const auto given = std::find_if(rivals_.begin(), rivals_.end(), [&](const Rival& rival) {
          return rival.candidate == candidate;
        });
        if (!given->simulated() && given->can_run())
          simulate(static_cast<std::size_t>(given - rivals_.begin()));
      }
    }
  }

  /// The error if nothing fits, about the candidate that needs least memory.
  [[noreturn]] void refuse() const {
    const auto least =
        std::min_element(rivals_.begin(), rivals_.end(), [](const Rival& a, const Rival& b) {
          // Wrong plans come last: they are the reason only if there are no others.
          return std::pair(a.fate == Fate::Wrong, a.memory_bytes) <
                 std::pair(b.fate == Fate::Wrong, b.memory_bytes);
        });
    if (least == rivals_.end()) {
      fail<InvalidArgument>(
          "tune: no strategy of the given names solves the problem; others are required");
    }
    if (least->fate == Fate::Wrong) throw PlanError(least->error);
    const Candidate& candidate = least->candidate;
    // check_fits() finds the longest sequence, and says so in its error.
    if (question_.with_length) {
      sim::Cluster cluster = question_.cluster;
      cluster.device.memory_bytes = evaluator_.memory_limit();
      const auto longer = [&](std::int64_t seq) {
        std::optional<plan::Problem> problem = question_.with_length(seq);
        if (problem) {
          problem->layout = candidate.layout;
          problem->wire = candidate.wire;
        }
        return problem;
      };
      check_fits({.problem = longer,
                  .seq = question_.problem.mask.q_len(),
                  .strategy = candidate.strategy,
                  .passes = question_.passes},
                 cluster);
    }
    fail<InvalidArgument>(
        "{} on {}: {}: {}", to_string(candidate.strategy), question_.cluster.name,
        count_of(question_.problem.mask.q_len(), "token"),
        sim::does_not_fit(static_cast<double>(least->memory_bytes), evaluator_.memory_limit()));
  }

  /// The rivals in the order that Answer promises.
  Answer answer() {
    rivals_[*best_].fate = Fate::Chosen;
    const auto rank = [](const Rival& rival) {
      if (rival.fate == Fate::Chosen) return std::pair(0, 0.0);
      if (!rival.can_run()) return std::pair(3, rival.estimate_s);
      return rival.simulated() ? std::pair(1, rival.times.total_s) : std::pair(2, rival.estimate_s);
    };
    std::stable_sort(rivals_.begin(), rivals_.end(),
                     [&](const Rival& a, const Rival& b) { return rank(a) < rank(b); });
    return {.rivals = std::move(rivals_), .floor_s = floor_s(question_)};
  }

  const Question& question_;
  Evaluator evaluator_;
  const std::vector<plan::Layout> first_layouts_;
  std::vector<Rival> rivals_;
  std::size_t first_ = 0;  ///< So many rivals, which come first, may not be skipped for little.
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
