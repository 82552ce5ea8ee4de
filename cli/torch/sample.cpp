// The verb `sample`: pictures of a trained dit, as a PNG or as values. Ranks are those of the
// recipe's mesh, which need not be the one that trained.
#include "armillary/train/sample.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/io/file_system.h"
#include "armillary/io/safetensors.h"
#include "cli/output_file.h"
#include "cli/torch/engine.h"
#include "cli/torch/png.h"
#include "cli/torch/run_recipe.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kSampleExamples = R"(
Examples:
  armillary sample runs/digits digits.png
  armillary sample runs/digits threes.png --classes 3 --count 64 --guidance 2
  armillary sample runs/digits digits.safetensors --count 1000 --steps 100
  armillary sample my.toml grid.png --init-from my_dit --set parallelism.context_parallel_degree=4
  armillary launch -n 4 -- sample runs/digits digits.png   4 processes instead of threads
  armillary sample runs/digits digits.png --guidance 2 --guidance-by ranks --set parallelism.data_parallel_shard_degree=2

Picture i begins with noise of --seed and i, and has the i-th of --classes, over and over: it is the same in any number,
with guidance by any way, and on any mesh up to rounding. A .safetensors file is as training reads it: pictures, mostly
from -1 to 1, classes and words.
Exit code: 0 done, 1 a rank failed, 2 bad input.)";

struct SampleArguments {
  std::string run;
  std::string file;
  std::vector<std::string> settings;
  std::string classes;
  std::string words;
  std::string guidance_by = "batch";
  std::int64_t count = 16;
  train::SampleOptions options;
  launch::EngineFlags engine;
};

/// The class of each picture; without a list all classes in turn.
std::vector<std::int64_t> classes_of(const SampleArguments& arguments, std::int64_t n_classes) {
  if (arguments.count < 1) {
    fail<InvalidArgument>("sample: --count {}; at least 1 is required", arguments.count);
  }
  std::vector<std::int64_t> list;
  if (arguments.classes.empty()) {
    for (std::int64_t label = 0; label < n_classes; ++label) list.push_back(label);
  } else {
    for (const std::string_view label : split(arguments.classes, ',')) {
      list.push_back(label == "none" ? n_classes
                                     : parse_integer("sample: --classes", label, {0, n_classes}));
    }
  }
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < arguments.count; ++i) {
    classes.push_back(list[static_cast<std::size_t>(i) % list.size()]);
  }
  return classes;
}

/// Pictures with their classes, and with their words if they have any.
void write_values(const std::string& path, const at::Tensor& pictures_NHWC,
                  const train::SampleOptions& options) {
  const at::Tensor values = pictures_NHWC.to(at::kFloat).contiguous();
  std::vector<io::TensorBytes> tensors{
      {{.name = "pictures", .dtype = io::TensorDtype::F32, .shape = values.sizes().vec()},
       {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}},
      {{.name = "classes", .dtype = io::TensorDtype::I64, .shape = {values.size(0)}},
       std::as_bytes(std::span(options.classes))}};
  std::vector<std::int64_t> text;
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    text.insert(text.end(), options.words.begin(), options.words.end());
  }
  if (!text.empty()) {
    tensors.push_back({{.name = "text",
                        .dtype = io::TensorDtype::I64,
                        .shape = {values.size(0), std::ssize(options.words)}},
                       std::as_bytes(std::span(text))});
  }
  io::write_safetensors(io::real_file_system(), path, std::move(tensors), {});
}

void run_sample(const SampleArguments& arguments) {
  const bool is_png = arguments.file.ends_with(".png");
  if (!is_png && !arguments.file.ends_with(".safetensors")) {
    fail<InvalidArgument>("sample: file {}; a name that ends in .png or .safetensors is required",
                          excerpt(arguments.file));
  }
  const auto [recipe, checkpoint] = recipe_of_run("sample", arguments.run, arguments.settings);
  if (is_png) check_png(recipe.model.channels);
  train::SampleOptions options = arguments.options;
  options.checkpoint = checkpoint;
  options.guidance_by = static_cast<train::GuidanceBy>(
      parse_choice("sample: --guidance-by", arguments.guidance_by, train::kGuidanceWays));
  options.classes = classes_of(arguments, recipe.model.n_classes);
  if (!arguments.words.empty()) {
    for (const std::string_view word : split(arguments.words, ',')) {
      options.words.push_back(parse_integer("sample: --words", word));
    }
  }
  const MeshShape mesh = train::mesh_of(recipe.parallelism);
  const launch::EngineChoice choice = choose_engine(
      arguments.engine,
      {mesh.ranks(), fmt::format("a mesh of dp {} x cp {} x tp {}", mesh.dp, mesh.cp, mesh.tp)});
  if (choice.is_first()) check_writable("sample", arguments.file);
  const at::Tensor pictures_NHWC = train::sample(
      recipe, options,
      [&](int world, double timeout_s, const std::function<void(comm::Communicator&)>& body) {
        run_ranks_on(choice, world, timeout_s, body);
      });
  if (!choice.is_first()) return;
  if (is_png) {
    write_file("sample", arguments.file, png_of(pictures_NHWC));
  } else {
    write_values(arguments.file, pictures_NHWC, options);
  }
  fmt::print("{} in {}\n", count_of(pictures_NHWC.size(0), "picture"), arguments.file);
}

}  // namespace

void add_sample(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<SampleArguments>();
  train::SampleOptions& options = arguments->options;
  CLI::App* verb = app.add_subcommand("sample", kSampleDescription);
  verb->add_option("run", arguments->run,
                   "Folder of a run (its newest checkpoint), a checkpoint, or a recipe (TOML)")
      ->required();
  verb->add_option("file", arguments->file, ".png: all in one; .safetensors: their values")
      ->required();
  verb->add_option("--classes", arguments->classes,
                   "By comma, numbers or none; default all of them");
  verb->add_option("--words", arguments->words,
                   "Those of all pictures, by comma: numbers, as many as model.text_tokens");
  verb->add_option("--count", arguments->count, "Pictures; default 16");
  verb->add_option("--steps", options.steps, "Steps from noise to a picture; default 50");
  verb->add_option("--guidance", options.guidance,
                   "How far to lead from the prediction without a class to that with it; default "
                   "1: the latter");
  verb->add_option("--guidance-by", arguments->guidance_by,
                   "batch, one pass of twice the sequences; passes, two of them with less memory; "
                   "ranks, half of those along dp for each prediction; default batch");
  verb->add_option("--seed", options.seed, "Of the noise; default 0");
  verb->add_option("--set", arguments->settings, "section.key=value, over the recipe's")
      ->expected(1)
      ->take_all();
  verb->add_option("--init-from", options.init_from,
                   "With a recipe: parameters of a folder, as `train --init-from`");
  add_engine_flags(*verb, arguments->engine);
  verb->footer(kSampleExamples);
  verb->callback([arguments, &exit_code] {
    run_sample(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
