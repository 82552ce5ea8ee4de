// The part of the verb `tune` that runs layers: --measure. Ranks are threads, or processes of which
// this is one; all of them search, which is deterministic, and rank 0 alone reads and writes the
// cache and prints.
#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/lab/bench/process_ranks.h"
#include "armillary/lab/bench/thread_ranks.h"
#include "armillary/lab/calibrate/measured_tune.h"
#include "armillary/predict/tune/cache.h"
#include "armillary/predict/tune/evaluator.h"
#include "armillary/predict/tune/search.h"
#include "cli/problem_flags.h"
#include "cli/torch/engine.h"
#include "cli/tune.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr double kTimeoutSeconds = 600;

/// The folder of answers, or none.
std::string folder_of(bool caches) {
  const std::optional<std::string> cache = tune::user_cache_folder();
  return caches && cache ? *cache + "/tuned" : "";
}

/// A measured answer of an earlier run.
std::optional<tune::Answer> known_answer(const tune::Question& question, bool caches) {
  const std::string folder = folder_of(caches);
  if (folder.empty()) return std::nullopt;
  return tune::cached(folder, question, tune::Evidence::Measured);
}

/// The answer with what the sides took in turns.
tune::Answer measured(tune::Answer answer, const std::vector<std::size_t>& indices,
                      const std::vector<bench::Side>& sides, double seconds) {
  const bench::TurnSummary turns = take_turns(sides, {.seconds = seconds, .least = 5});
  std::vector<double> medians;
  medians.reserve(sides.size());
  for (const bench::Side& side : sides) medians.push_back(turns.medians.at(side.name));
  return calibrate::with_measured(std::move(answer), indices, medians);
}

/// Layers that are run, of an answer by simulation.
struct CandidateSet {
  tune::Answer answer;
  std::vector<std::size_t> indices;
};

CandidateSet candidates(const tune::Question& question, const MeasureFlags& flags) {
  CandidateSet candidates{.answer = tune::search(question), .indices = {}};
  candidates.indices =
      calibrate::worth_measuring(candidates.answer, parse_count("--candidates", flags.count));
  tune::simulate_all(question, candidates.answer, candidates.indices);
  return candidates;
}

std::optional<tune::Answer> measure(const tune::Question& question, const MeasureFlags& flags,
                                    bool caches) {
  const plan::Problem& problem = question.problem;
  if (problem.batch != 1 || problem.value_dim != problem.head_dim) {
    fail<InvalidArgument>(
        "--measure: batch {} and heads of {} and {} elements given; a batch of 1 and equal heads "
        "are required",
        problem.batch, problem.head_dim, problem.value_dim);
  }
  const auto seconds = static_cast<double>(parse_integer("--seconds", flags.seconds, {0, 3600}));
  const launch::EngineChoice choice =
      choose_engine(flags.engine, {problem.world, fmt::format("--world {}", problem.world)});
  std::optional<tune::Answer> result;
  const auto keep = [&](const tune::Answer& answer) {
    result = answer;
    const std::string folder = folder_of(caches);
    if (!folder.empty()) tune::store(folder, question, answer, tune::Evidence::Measured);
  };
  if (choice.engine == launch::Engine::Threads) {
    result = known_answer(question, caches);
    if (result) return result;
    const CandidateSet request = candidates(question, flags);
    calibrate::MeasuredTune layers(question, request.answer, request.indices,
                                   bench::make_thread_ranks);
    keep(measured(request.answer, request.indices, layers.sides(), seconds));
    return result;
  }
  run_ranks_on(choice, problem.world, kTimeoutSeconds, [&](comm::Communicator& comm) {
    if (comm.rank() == 0) result = known_answer(question, caches);
    std::byte is_known{static_cast<unsigned char>(result ? 1 : 0)};
    comm::broadcast(comm, std::span<std::byte>(&is_known, 1), 0);
    if (is_known != std::byte{0}) return;
    const CandidateSet request = candidates(question, flags);
    bench::Processes processes(comm);
    calibrate::MeasuredTune layers(
        question, request.answer, request.indices,
        [&](int world, int owner) { return processes.make_ranks(world, owner); });
    const std::vector<bench::Side> sides = layers.sides();
    if (comm.rank() != 0) return processes.follow(sides);
    keep(measured(request.answer, request.indices, processes.lead(sides), seconds));
    processes.dismiss();
  });
  return result;
}

}  // namespace

void add_measuring_tune(CLI::App& app, int& exit_code) {
  launch::EngineFlags* engine = nullptr;
  CLI::App* verb = add_tune_with(app, exit_code, &measure, engine);
  add_engine_flags(*verb, *engine);
}

}  // namespace armillary::cli
