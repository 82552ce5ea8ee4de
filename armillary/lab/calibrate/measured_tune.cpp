// A candidate becomes a layer of lab/bench on ranks of its own; sides run in turns, so that a
// neighbour on the machine slows all candidates alike.
#include "armillary/lab/calibrate/measured_tune.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/lab/bench/attention_case.h"

namespace armillary::calibrate {
namespace {

using tune::Evaluation;
using tune::Outcome;

bool can_be_measured(const Evaluation& evaluation) {
  return evaluation.can_run() && evaluation.candidate.placement == tune::Placement{};
}

/// Whether an earlier evaluation has the same times and bytes, so the same plan under another name:
/// on two ranks most rings have one plan.
bool is_known_plan(const tune::Answer& answer, std::size_t r) {
  const Evaluation& evaluation = answer.evaluations[r];
  return evaluation.simulated() &&
         std::any_of(answer.evaluations.begin(),
                     answer.evaluations.begin() + static_cast<std::ptrdiff_t>(r),
                     [&](const Evaluation& other) {
                       return other.times == evaluation.times &&
                              other.sent_bytes == evaluation.sent_bytes &&
                              other.memory_bytes == evaluation.memory_bytes &&
                              other.candidate.layout == evaluation.candidate.layout;
                     });
}

/// Whether both passes are asked for, not forward alone; a layer can run no others.
/// @throws InvalidArgument for other passes.
bool wants_backward(const tune::Question& question) {
  const std::vector<plan::Pass> forward{plan::Pass::Forward};
  const std::vector<plan::Pass> both{plan::Pass::Forward, plan::Pass::Backward};
  if (question.passes != forward && question.passes != both) {
    fail<InvalidArgument>(
        "tune --measure: a pass that is not run alone was given; --pass forward or both is "
        "required");
  }
  return question.passes == both;
}

}  // namespace

std::vector<std::size_t> worth_measuring(const tune::Answer& answer, int count) {
  // Variants of one strategy are often alike in simulation, and what the model of the machine gets
  // wrong is common to them. So the fastest of each name go first, then the fastest of each name
  // and layout, then variants, and last what was not simulated or is another's plan.
  constexpr double kNear = 1.5;
  std::array<std::vector<std::size_t>, 5> classes;
  std::set<std::string> names;
  std::set<std::string> in_layouts;
  for (std::size_t r = 0; r < answer.evaluations.size(); ++r) {
    const Evaluation& evaluation = answer.evaluations[r];
    if (!can_be_measured(evaluation)) continue;
    const bool is_known = is_known_plan(answer, r);
    const std::string& name = evaluation.candidate.strategy.name;
    const bool is_new = names.insert(name).second && !is_known;
    const bool is_new_layout =
        in_layouts.insert(name + to_string(evaluation.candidate.layout)).second && !is_known;
    const bool is_near = evaluation.estimate_s <= kNear * answer.choice().times.total_s;
    std::size_t place = 4;
    if (evaluation.simulated()) {
      place = is_new ? 0 : is_new_layout ? 2 : 3;
    } else if (is_new && is_near) {
      place = 1;
    }
    classes.at(place).push_back(r);
  }
  std::vector<std::size_t> indices;
  for (const std::vector<std::size_t>& one : classes) {
    indices.insert(indices.end(), one.begin(), one.end());
  }
  indices.resize(std::min(indices.size(), static_cast<std::size_t>(count)));
  std::sort(indices.begin(), indices.end());
  return indices;
}

tune::Answer with_measured(tune::Answer answer, const std::vector<std::size_t>& measured,
                           const std::vector<double>& seconds) {
  ARMILLARY_CHECK(!measured.empty() && measured.size() == seconds.size());
  for (std::size_t i = 0; i < measured.size(); ++i) {
    answer.evaluations.at(measured[i]).measured_s = seconds[i];
  }
  // The simulated choice loses its place unless it is measured as the fastest.
  for (Evaluation& evaluation : answer.evaluations) {
    if (evaluation.outcome == Outcome::Chosen) evaluation.outcome = Outcome::Slower;
  }
  const auto key = [](const Evaluation& evaluation) {
    return std::pair(evaluation.measured_s > 0 ? 0 : 1, evaluation.measured_s);
  };
  std::stable_sort(answer.evaluations.begin(), answer.evaluations.end(),
                   [&](const Evaluation& a, const Evaluation& b) { return key(a) < key(b); });
  answer.evaluations.front().outcome = Outcome::Chosen;
  return answer;
}

MeasuredTune::MeasuredTune(const tune::Question& question, const tune::Answer& answer,
                           const std::vector<std::size_t>& measured,
                           const bench::MakeRanks& make_ranks)
    : backward_(wants_backward(question)) {
  const plan::Problem& problem = question.problem;
  const bench::Sample whole = bench::sample({.dtype = problem.dtype,
                                             .q_tokens = problem.mask.q_len(),
                                             .k_tokens = problem.mask.kv_len(),
                                             .heads = problem.heads,
                                             .kv_heads = problem.kv_heads,
                                             .head_dim = problem.head_dim});
  for (const std::size_t r : measured) {
    const tune::Candidate& candidate = answer.evaluations.at(r).candidate;
    layers_.push_back(std::make_unique<bench::Layer>(problem_of(question, candidate),
                                                     to_string(candidate.strategy), whole,
                                                     make_ranks(problem.world, 0)));
    layers_.back()->first_run();
  }
}

std::vector<bench::Side> MeasuredTune::sides() {
  std::vector<bench::Side> sides;
  sides.reserve(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    sides.push_back(
        {std::to_string(i),
         [layer = layers_[i].get(), backward = backward_] { return layer->run(backward); },
         /*on_all_ranks=*/true});
  }
  return sides;
}

}  // namespace armillary::calibrate
