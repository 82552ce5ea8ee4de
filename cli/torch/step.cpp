// The verbs `plan` and `verify` with a recipe: its training step as a grid, and its proof. A step
// may be broken on purpose first, to show that the proof finds it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/plan/step/alike.h"
#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/mutants.h"
#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/text.h"
#include "armillary/plan/step/words.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/step_shape.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

struct StepFlags {
  std::string recipe;
  std::vector<std::string> settings;
  std::string mutant;  ///< Number of the mutant, or empty.
};

plan::step::StepShape shape_of(const StepFlags& flags) {
  train::Recipe recipe = train::load_recipe(flags.recipe);
  for (const std::string& setting : flags.settings) train::apply_setting(recipe, setting);
  train::validate(recipe);
  return train::step_shape_of(*train::make_model(recipe), recipe.parallelism, recipe.training,
                              recipe.optimizer);
}

/// "ring.toml: 4 ranks, 6 units, 2 microbatches, ZeRO-3".
std::string title(const StepFlags& flags, const plan::step::StepShape& shape) {
  return fmt::format("{}: {}, {}, {}, ZeRO-{}", flags.recipe, count_of(shape.mesh.ranks(), "rank"),
                     count_of(shape.units.size(), "unit"),
                     count_of(shape.microbatches, "microbatch", "microbatches"),
                     plan::step::StepTables(shape).zero());
}

void print_step(const StepFlags& flags) {
  const plan::step::StepShape shape = shape_of(flags);
  const plan::step::StepProgram step = plan::step::build_step(shape);
  fmt::print("{}\n{}", title(flags, shape), to_grid(step.world(), shape));
}

/// The mutant of this number. @throws InvalidArgument if there are fewer.
plan::step::StepMutant mutant_of(const plan::step::StepProgram& step, const std::string& number) {
  const std::int64_t place = parse_integer("--break", number, {0, count_mutants(step) - 1});
  return mutant_at(step, static_cast<int>(place));
}

/// Prints the grid around the first fault, and all faults. Returns the exit code.
int print_faults(const StepFlags& flags, const plan::step::StepShape& shape,
                 const plan::World& world, const std::vector<plan::Diagnostic>& faults) {
  fmt::print("{}\n", grid_around(world, shape, faults.front()));
  for (const plan::Diagnostic& fault : faults) {
    fmt::print("rank {} op {}: {}: {}\n", fault.rank, fault.op, fault.rule, fault.text);
  }
  fmt::print("{}: NOT proved\n", title(flags, shape));
  return kFailed;
}

/// Proves the broken step, of a large mesh that of the smallest one that is alike. Returns the exit
/// code.
int verify_mutant(const StepFlags& flags, const plan::step::StepShape& of_recipe) {
  const plan::step::StepProgram step = plan::step::build_step(smallest_alike(of_recipe));
  const plan::step::StepShape& shape = step.tables.shape();
  const plan::step::StepMutant mutant = mutant_of(step, flags.mutant);
  fmt::print("broken: {}\n", to_string(mutant, step));
  const plan::World world{step.measures, mutant.ranks};
  const std::vector<plan::Diagnostic> faults = check_step(world, shape);
  ARMILLARY_CHECK(!faults.empty());
  return print_faults(flags, shape, world, faults);
}

/// Proves the step by that of the smallest mesh that is alike. Returns the exit code.
int verify_step(const StepFlags& flags) {
  const plan::step::StepShape shape = shape_of(flags);
  if (!flags.mutant.empty()) return verify_mutant(flags, shape);
  const plan::step::StepProgram small = plan::step::build_step(smallest_alike(shape));
  const plan::step::StepShape& of_small = small.tables.shape();
  const std::vector<plan::Diagnostic> faults = check_small(small);
  if (!faults.empty()) return print_faults(flags, of_small, small.world(), faults);
  const plan::step::StepTables tables(shape);
  const plan::Measures measures = step_measures(tables);
  constexpr double kMib = 1 << 20;
  std::int64_t rest = 0;
  std::int64_t peak = 0;
  std::int64_t host = 0;
  for (plan::Rank rank = 0; rank < shape.mesh.ranks(); ++rank) {
    const plan::RankProgram program = rank_program(tables, measures, rank);
    const plan::Rank as = rank_alike(tables, rank, small.tables);
    const bool alike = !plan::step::first_difference(
        {tables, program}, {small.tables, small.ranks[static_cast<std::size_t>(as)]});
    ARMILLARY_CHECK(alike);
    const plan::step::StepBytes bytes = bytes_of(tables, program);
    rest = std::max(rest, bytes.rest);
    peak = std::max(peak, bytes.peak);
    host = std::max(host, bytes.host);
  }
  const std::string on_host =
      host == 0 ? ""
                : fmt::format(", and {:.2f} MiB on the host", static_cast<double>(host) / kMib);
  fmt::print(
      "{}: proved: every gradient is summed once over the axes along which it is partial, every "
      "unit is gathered before use and freed after, no deadlock; parameters, gradients and state "
      "of a rank take {:.2f} MiB at rest and {:.2f} at most{}\n",
      title(flags, shape), static_cast<double>(rest) / kMib, static_cast<double>(peak) / kMib,
      on_host);
  return kDone;
}

CLI::App* add_step_verb(CLI::App& app, const char* name, const char* description,
                        const std::shared_ptr<StepFlags>& flags) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->add_option("recipe", flags->recipe, "TOML file")->required();
  verb->add_option("--set", flags->settings, "SECTION.KEY=VALUE of the recipe; may be repeated")
      ->expected(1)
      ->take_all();
  return verb;
}

}  // namespace

void add_recipe_plan(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<StepFlags>();
  CLI::App* verb = add_step_verb(app, "plan", "The training step of a recipe as a grid", flags);
  verb->callback([flags, &exit_code] {
    print_step(*flags);
    exit_code = kDone;
  });
}

void add_recipe_verify(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<StepFlags>();
  CLI::App* verb = add_step_verb(app, "verify", "Prove the training step of a recipe", flags);
  verb->add_option("--break", flags->mutant,
                   "Number of a mistake to make first, from 0 on; the recipe comes before");
  verb->callback([flags, &exit_code] { exit_code = verify_step(*flags); });
}

}  // namespace armillary::cli
