// Measures what a rank does to read the tokens of a training step: read_microbatch, as the trainer
// calls it, of step after step of a recipe on one rank.
//
//   prepare_bench SECTION.KEY=VALUE...     settings over the defaults, as `train --set`
//
// Prints one JSON line: the median of all steps, each sequence of an epoch once at most.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "armillary/train/load_data.h"
#include "armillary/train/microbatch.h"
#include "armillary/train/recipe.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {
namespace {

constexpr std::int64_t kMostSteps = 1000;

/// Seconds of reading the sequences of one step.
double seconds_of_step(const Data& data, const model::Model& model, const Recipe& recipe,
                       std::int64_t step) {
  const MicrobatchPlace place{.attention = model.cost().attention};
  const std::int64_t sequences = recipe.training.global_batch_size;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < sequences; i += recipe.training.local_batch_size) {
    read_microbatch(data, step * sequences + i, model, recipe, place);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run(std::span<char*> words) {
  Recipe recipe;
  for (const char* word : words) apply_setting(recipe, word);
  validate(recipe);
  const std::unique_ptr<Data> data = load_data(recipe);
  const std::unique_ptr<model::Model> model = make_model(recipe);
  const std::int64_t steps = std::clamp<std::int64_t>(
      data->sequences_per_epoch() / recipe.training.global_batch_size, 1, kMostSteps);
  std::vector<double> seconds;
  for (std::int64_t step = 0; step < steps; ++step) {
    seconds.push_back(seconds_of_step(*data, *model, recipe, step));
  }
  std::ranges::sort(seconds);
  const nlohmann::json line{{"seconds", seconds[seconds.size() / 2]}, {"turns", seconds.size()}};
  std::puts(line.dump().c_str());
}

}  // namespace
}  // namespace armillary::train

int main(int argc, char** argv) {
  try {
    armillary::train::run(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
