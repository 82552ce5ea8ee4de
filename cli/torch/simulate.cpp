// The verb `simulate` with a recipe: the programs of its training step with times, overlap
// included. Attention of a layer is simulated by itself first, as the other form of the verb does.
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/model/recompute.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/words.h"
#include "armillary/predict/cost/attention_memory.h"
#include "armillary/predict/cost/step_timeline.h"
#include "armillary/predict/sim/device_dtype.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/group_share.h"
#include "armillary/train/data.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/estimate.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/step_shape.h"
#include "cli/output_file.h"
#include "cli/problem_flags.h"
#include "cli/torch/recipe_model.h"
#include "cli/torch/simulated_step.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kStepExamples = R"(Examples:
  armillary simulate recipes/llama.toml --cluster c6 --set training.mixed_precision_param=bfloat16
  armillary simulate recipes/llama.toml --cluster c6       in fp32
  armillary simulate my.toml --cluster c1:nodes=16 --set parallelism.zero=3 --trace step.json

Without a recipe: armillary simulate --help)";

struct RecipeSimulateFlags {
  std::string recipe;
  std::vector<std::string> settings;
  std::string cluster;
  std::string trace;
  bool json = false;
};

/// A recipe on a cluster, as costs have it.
struct RecipeStep {
  train::Recipe recipe;
  sim::Cluster cluster;  ///< Its device computes in the dtype of the recipe.
  std::string assumed;   ///< Rates of it that are not known (device_dtype.h).
  cost::Step work;
  cost::Parallelism parallelism;
  cost::StepRates rates;
};

RecipeStep step_of(const RecipeSimulateFlags& flags, train::Recipe of_flags) {
  RecipeStep step;
  step.recipe = std::move(of_flags);
  train::validate(step.recipe);
  step.cluster = sim::load_cluster(flags.cluster);
  const train::Recipe& recipe = step.recipe;
  sim::DeviceInDtype device =
      sim::device_in(step.cluster.device, train::plan_dtype_of(recipe.training));
  step.cluster.device = std::move(device.device);
  step.assumed = std::move(device.assumed);
  const MeshShape mesh = train::mesh_of(recipe.parallelism);
  step.work = {.model = cost_on_cluster(recipe),
               .seq = recipe.training.seq_len,
               .batch = recipe.training.global_batch_size};
  step.parallelism = {.mesh = mesh,
                      .zero = static_cast<int>(recipe.parallelism.zero),
                      .recompute = model::parse_recompute(recipe.activation_checkpoint.mode),
                      .microbatch = recipe.training.local_batch_size,
                      .ep = static_cast<int>(recipe.parallelism.expert_parallel_degree)};
  const train::Dtypes dtypes = train::dtypes_of(recipe.training);
  step.rates.gathered_bytes = static_cast<double>(c10::elementSize(dtypes.param));
  step.rates.gradient_bytes = static_cast<double>(c10::elementSize(dtypes.reduce));
  // The usual ones are of masters and moments in fp32.
  step.rates.optimizer_bytes *= static_cast<double>(c10::elementSize(dtypes.master)) / 4;
  if (step.cluster.devices_per_node % mesh.tp != 0) {
    fail<InvalidArgument>(
        "simulate: parallelism.tensor_parallel_degree = {} on nodes of {}; a divisor is required; "
        "nearest: {}",
        mesh.tp, count_of(step.cluster.devices_per_node, "device"),
        nearest_divisor(step.cluster.devices_per_node, mesh.tp));
  }
  return step;
}

RecipeStep read_step(const RecipeSimulateFlags& flags) {
  train::Recipe recipe = train::load_recipe(flags.recipe);
  for (const std::string& setting : flags.settings) train::apply_setting(recipe, setting);
  return step_of(flags, std::move(recipe));
}

/// The heads of the rank along tp that has most of them.
cost::ModelAttention most_heads(const cost::ModelAttention& all, int tp) {
  cost::ModelAttention most = train::heads_along_tp(all, 0, tp);
  for (int index = 1; index < tp; ++index) {
    const cost::ModelAttention heads = train::heads_along_tp(all, index, tp);
    if (heads.heads > most.heads) most = heads;
  }
  return most;
}

/// The attention of a layer, on the rank along tp that has most heads.
plan::Planner attention_planner(const RecipeStep& step) {
  const train::Recipe& recipe = step.recipe;
  const MeshShape& mesh = step.parallelism.mesh;
  const cost::ModelAttention heads = most_heads(step.work.model.attention, mesh.tp);
  const std::vector<plan::Mask> masks(
      static_cast<std::size_t>(recipe.training.local_batch_size),
      train::sequence_mask(recipe.parallelism.mask, std::span(&recipe.training.seq_len, 1)));
  return {train::attention_problem(recipe, heads, plan::joined_mask(masks)),
          train::chosen_strategy(recipe, heads, mesh.cp).strategy};
}

/// Worlds above this have one rank of each class of alike ones.
constexpr int kUnfolded = 256;

/// The passes of attention of one layer, as recomputation has them.
std::vector<sim::Timeline> attention_passes(const RecipeStep& step, const plan::Planner& planner) {
  const MeshShape& mesh = step.parallelism.mesh;
  std::vector<plan::Pass> passes{plan::Pass::Forward};
  if (step.parallelism.recompute == cost::Recompute::Full) passes.push_back(plan::Pass::Forward);
  if (step.parallelism.recompute == cost::Recompute::AttentionOutput) {
    passes.push_back(plan::Pass::Replay);
  }
  passes.push_back(plan::Pass::Backward);
  std::vector<sim::Timeline> timelines;
  timelines.reserve(passes.size());
  for (const plan::Pass pass : passes) {
    timelines.push_back(sim::simulate(planner, pass, sim::group_share(step.cluster, mesh.tp),
                                      {.fold = mesh.cp > kUnfolded}));
  }
  return timelines;
}

/// The first rank of each place along tp.
std::vector<plan::Rank> ranks_along_tp(const plan::step::StepTables& tables) {
  const int tp = tables.shape().mesh.tp;
  std::vector<plan::Rank> ranks;
  for (plan::Rank rank = 0; static_cast<int>(ranks.size()) < tp; ++rank) {
    if (tables.tp_index(rank) == static_cast<int>(ranks.size())) ranks.push_back(rank);
  }
  return ranks;
}

/// The programs of these ranks; those of others are left empty.
plan::step::StepProgram programs_along_tp(const plan::step::StepShape& shape) {
  const plan::step::StepTables tables(shape);
  plan::step::StepProgram step{.tables = tables, .measures = step_measures(tables), .ranks = {}};
  const std::vector<plan::Rank> ranks = ranks_along_tp(tables);
  step.ranks.resize(static_cast<std::size_t>(ranks.back()) + 1);
  for (const plan::Rank rank : ranks) {
    step.ranks.at(rank) = rank_program(step.tables, step.measures, rank);
  }
  return step;
}

plan::step::StepProgram programs_of(const RecipeStep& step) {
  return programs_along_tp(train::step_shape_of(*train::make_model(step.recipe),
                                                step.recipe.parallelism, step.recipe.training,
                                                step.recipe.optimizer));
}

/// The answer: times of the rank that ends last, memory of the one that needs most.
struct StepAnswer {
  cost::StepTimeline timeline;
  double attention_s = 0;
  double attention_exposed_s = 0;
  double tensor_s = 0;
  double peak_bytes = 0;
  double tokens_per_s = 0;
};

/// Bytes of the rank that needs most, as a dry run has them.
double peak_bytes(const RecipeStep& step, const plan::Planner& planner,
                  const std::vector<sim::Timeline>& attention) {
  std::int64_t slots = 0;
  for (const sim::Timeline& pass : attention) {
    for (const sim::RankTimeline& rank : pass.ranks) slots = std::max(slots, rank.slot_bytes);
  }
  // Some ranks of a large world stand for all.
  const int world = planner.problem().world;
  cost::KeptBytes bytes;
  for (plan::Rank rank = 0; rank < world; rank += std::max(1, world / kUnfolded)) {
    bytes.grow(cost::kept_by_attention(planner, rank));
  }
  const train::TrainingOptions& training = step.recipe.training;
  const std::int64_t tokens =
      ceil_div(training.seq_len * training.local_batch_size, step.parallelism.mesh.cp);
  return train::memory_of(step.recipe, step.work.model,
                          {.policy = step.parallelism.recompute,
                           .attention = cost::attention_bytes(static_cast<double>(slots), bytes),
                           .tokens = static_cast<double>(tokens)})
      .total();
}

StepAnswer simulate_step(const RecipeSimulateFlags& flags, const RecipeStep& step,
                         const plan::step::StepProgram& program) {
  const plan::Planner planner = attention_planner(step);
  const std::vector<sim::Timeline> passes = attention_passes(step, planner);
  const cost::AttentionTime attention = cost::attention_time(passes);
  const cost::StepMachine machine{
      .cluster = step.cluster,
      .units = cost::unit_times(step.work, step.parallelism, step.cluster, attention, step.rates),
      .rates = step.rates};
  const cost::StepTime terms =
      cost::step_time(step.work, step.parallelism, step.cluster, attention, step.rates);
  StepAnswer answer{.attention_s = terms.attention, .tensor_s = terms.tensor_parallel};
  answer.attention_exposed_s =
      attention.total() == 0 ? 0 : terms.attention * attention.exposed / attention.total();
  std::vector<cost::StepTimeline> timelines;
  for (const plan::Rank rank : ranks_along_tp(program.tables)) {
    timelines.push_back(cost::simulate(program, rank, machine));
    if (timelines.back().end_s >= answer.timeline.end_s) answer.timeline = timelines.back();
  }
  answer.peak_bytes = peak_bytes(step, planner, passes);
  answer.tokens_per_s =
      static_cast<double>(step.work.seq * step.work.batch) / answer.timeline.end_s;
  if (!flags.trace.empty()) {
    write_file("simulate", flags.trace, cost::to_trace(program, timelines) + "\n");
  }
  return answer;
}

nlohmann::ordered_json to_json(const RecipeSimulateFlags& flags, const RecipeStep& step,
                               const plan::step::StepProgram& program, const StepAnswer& answer) {
  const auto& [gathers, sums, moves] = answer.timeline.exposed_s;
  return {{"recipe", flags.recipe},
          {"cluster", step.cluster.name},
          {"ranks", program.tables.shape().mesh.ranks()},
          {"units", program.tables.units()},
          {"microbatches", program.tables.shape().microbatches},
          {"zero", program.tables.zero()},
          {"end_s", answer.timeline.end_s},
          {"tokens_per_s", answer.tokens_per_s},
          {"compute_s", answer.timeline.compute_s},
          {"attention_s", answer.attention_s},
          {"tensor_parallel_s", answer.tensor_s},
          {"gathers_s", answer.timeline.busy_s[0]},
          {"sums_s", answer.timeline.busy_s[1]},
          {"moves_s", answer.timeline.busy_s[2]},
          {"exposed_s",
           {{"gathers", gathers},
            {"sums", sums},
            {"moves", moves},
            {"tensor_parallel", answer.tensor_s},
            {"attention", answer.attention_exposed_s}}},
          {"peak_bytes", answer.peak_bytes},
          {"assumed", step.assumed}};
}

void print_answer(const RecipeSimulateFlags& flags, const RecipeStep& step,
                  const plan::step::StepProgram& program, const StepAnswer& answer) {
  constexpr double kMilli = 1e-3;
  constexpr double kGib = 1 << 30;
  const plan::step::StepShape& shape = program.tables.shape();
  const auto ms = [](double seconds) { return seconds / kMilli; };
  const auto percent = [&](double seconds) { return 100 * seconds / answer.timeline.end_s; };
  const auto& [gathers, sums, moves] = answer.timeline.exposed_s;
  fmt::print("{} on {}: {}, {}, {}, ZeRO-{}\n", flags.recipe, step.cluster.name,
             count_of(shape.mesh.ranks(), "rank"), count_of(program.tables.units(), "unit"),
             count_of(shape.microbatches, "microbatch", "microbatches"), program.tables.zero());
  fmt::print("  time                {:>10.3f} ms, {:.0f} tokens/s\n", ms(answer.timeline.end_s),
             answer.tokens_per_s);
  fmt::print(
      "  compute lane        {:>10.3f} ms, of which attention {:.3f}, messages of tp {:.3f}\n",
      ms(answer.timeline.compute_s), ms(answer.attention_s), ms(answer.tensor_s));
  fmt::print("  gather lane         {:>10.3f} ms\n", ms(answer.timeline.busy_s[0]));
  fmt::print("  sum lane            {:>10.3f} ms\n", ms(answer.timeline.busy_s[1]));
  if (shape.state_on_host) {
    const sim::DeviceSpec& device = step.cluster.device;
    const bool has_link = device.host_bytes_per_s > 0;
    fmt::print("  host lane           {:>10.3f} ms, at {:.1f} GB/s{}; exposed {:.3f}\n",
               ms(answer.timeline.busy_s[2]),
               (has_link ? device.host_bytes_per_s : device.memory_bytes_per_s / 2) * 1e-9,
               has_link ? "" : " in its memory (no device.host_GBps)", ms(moves));
  }
  fmt::print(
      "  exposed messages    {:>10.1f} %: gathers {:.1f}, sums {:.1f}, tp {:.1f}, attention "
      "{:.1f}\n",
      percent(gathers + sums + answer.tensor_s + answer.attention_exposed_s), percent(gathers),
      percent(sums), percent(answer.tensor_s), percent(answer.attention_exposed_s));
  fmt::print("  memory              {:>10.2f} GiB at most, {:.1f} there\n",
             answer.peak_bytes / kGib, step.cluster.device.memory_bytes / kGib);
  if (!step.assumed.empty()) fmt::print("  assumed             {}\n", step.assumed);
}

void run(const RecipeSimulateFlags& flags) {
  if (!flags.trace.empty()) check_writable("simulate", flags.trace);
  const RecipeStep step = read_step(flags);
  const plan::step::StepProgram program = programs_of(step);
  const StepAnswer answer = simulate_step(flags, step, program);
  if (flags.json) {
    fmt::print("{}\n", to_json(flags, step, program, answer).dump());
  } else {
    print_answer(flags, step, program, answer);
  }
}

}  // namespace

report::SimulatedStep simulated_step(const train::Recipe& recipe) {
  const RecipeSimulateFlags flags{.recipe = "metrics.cluster", .cluster = recipe.metrics.cluster};
  const RecipeStep step = step_of(flags, recipe);
  const StepAnswer answer = simulate_step(flags, step, programs_of(step));
  return {.cluster = step.cluster.name,
          .step_s = answer.timeline.end_s,
          .exposed_s = std::accumulate(answer.timeline.exposed_s.begin(),
                                       answer.timeline.exposed_s.end(), 0.0),
          .tokens_per_s = answer.tokens_per_s};
}

void add_recipe_simulate(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<RecipeSimulateFlags>();
  CLI::App* verb = app.add_subcommand("simulate", "Times of the training step of a recipe");
  verb->add_option("recipe", flags->recipe, "TOML file")->required();
  verb->add_option("--cluster", flags->cluster, "PRESET, PRESET:nodes=N, or a .toml file")
      ->required()
      ->check(not_empty());
  verb->add_option("--set", flags->settings, "SECTION.KEY=VALUE of the recipe; may be repeated")
      ->expected(1)
      ->take_all();
  verb->add_flag("--json", flags->json, "One JSON object");
  verb->add_option("--trace", flags->trace,
                   "Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing")
      ->check(not_empty());
  verb->footer(kStepExamples);
  verb->callback([flags, &exit_code] {
    run(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
