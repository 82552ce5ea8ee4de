// model_weights.cpp: a path is a GGUF file by its name, a model folder if it has config.json, else
// a run or a checkpoint. Weights are read range by range, so a rank reads its part alone.
#include "armillary/serve/model_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/safetensors.h"
#include "armillary/model/registry.h"
#include "armillary/model/rope_scaling.h"
#include "armillary/serve/windows.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/checkpoint/model_source.h"
#include "armillary/train/export_model.h"
#include "armillary/train/model_from.h"
#include "armillary/train/recipe.h"

namespace armillary::serve {
namespace {

namespace fs = std::filesystem;

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Refuses a model that makes pictures.
void require_words(std::string_view where, const model::ModelOptions& options) {
  if (options.name != "dit") return;
  fail<InvalidArgument>(
      "{}: model.name dit, which makes pictures, given; gpt, gpt2, llama or moe is required; "
      "nearest: `armillary sample`",
      where);
}

/// A model is asked for the next token as it was trained to predict it; windows_of() has its
/// window.
void require_causal(std::string_view where, const train::Recipe& recipe) {
  const std::string& mask = recipe.parallelism.mask;
  if (mask == "causal" || mask == "documents" || mask == "documents:within=causal") return;
  for (const std::int64_t window : windows_of(recipe.model)) {
    if (mask == train::mask_with_window("causal", window)) return;
    if (mask == train::mask_with_window("documents", window)) return;
  }
  fail<InvalidArgument>(
      "{}: a model that was trained with parallelism.mask {} given; one with causal, or with "
      "documents, is required",
      where, excerpt(mask));
}

/// Adds the ids of eos_token_id of a file of transformers, which may be one or several.
void add_ends(const std::string& path, std::vector<std::int64_t>& ends) {
  if (!is_file(path)) return;
  const JsonRead read = read_json_text(read_input(
      {.where = "model", .required = "a JSON object", .most_bytes = kMostConfigurationBytes},
      path));
  if (read.fault || !read.value.is_object()) {
    fail<IoError>("model: {} {}; a JSON object is required", excerpt(path),
                  read.fault ? to_string(*read.fault) : "is no JSON object");
  }
  const nlohmann::json config = read.value;
  const nlohmann::json ids = config.value("eos_token_id", nlohmann::json());
  for (const nlohmann::json& id : ids) {  // One, several or null.
    if (id.is_number_integer()) ends.push_back(id.get<std::int64_t>());
  }
}

}  // namespace

ModelWeights::ModelWeights(const model::Model& model, const ReadParameter& read,
                           const WeightOptions& options) {
  const std::vector<model::Parameter> parameters = model.parameters();
  std::map<std::string, at::Tensor> values;
  for (const model::Parameter& parameter : parameters) {
    const model::GlobalRange range = model::range_of(parameter, options.tp_index, options.tp_ranks);
    at::Tensor value = at::empty(range.size, at::kFloat);
    read(parameter.name, range,
         std::span(value.mutable_data_ptr<float>(), static_cast<std::size_t>(value.numel())));
    if (value.dim() > 1) value = value.to(options.dtype);
    bytes_ += static_cast<std::int64_t>(value.nbytes());
    values[parameter.name] = value;
  }
  for (const std::string& unit : model.units()) {
    std::vector<std::string> names;
    std::vector<at::Tensor> of_unit;
    for (const model::Parameter& parameter : parameters) {
      if (std::ranges::count(parameter.units, unit) == 0) continue;
      names.push_back(parameter.name);
      of_unit.push_back(values.at(parameter.name));
    }
    units_.emplace_back(unit, std::move(names), std::move(of_unit));
  }
}

ModelFile::ModelFile(std::string_view where, const std::string& path) {
  const bool is_gguf = path.ends_with(".gguf");
  if (!is_gguf && !is_file(path + "/" + train::kConfigName)) {
    read_run(where, path);
    return;
  }
  source_ = path;
  const std::unique_ptr<train::ModelSource> source = train::open_model_source(path);
  options_ = source->model();
  require_words(where, options_);
  // Sizes of a file may be any number: they are compared before weights have memory.
  source->expect_tensors(model::make_model(options_, {})->parameters());
  if (is_gguf || is_file(path + "/tokenizer.json")) tokenizer_ = path;
  if (is_gguf) return;
  add_ends(path + "/" + train::kConfigName, ends_);
  add_ends(path + "/generation_config.json", ends_);
}

void ModelFile::read_run(std::string_view where, const std::string& path) {
  if (!is_file(path + "/" + train::kManifestName) && !is_file(path + "/" + train::kRecipeName)) {
    fail<InvalidArgument>(
        "{}: {} has none of {}, {} and {}; the folder of a run, of a checkpoint or of a model, or "
        "a .gguf file, is required",
        where, excerpt(path), train::kRecipeName, train::kManifestName, train::kConfigName);
  }
  checkpoint_ = train::checkpoint_of(path, where);
  const train::Checkpoint checkpoint(checkpoint_);
  const train::Recipe recipe =
      train::parse_saved_recipe(checkpoint.recipe(), checkpoint_ + "/" + train::kRecipeName);
  require_words(where, recipe.model);
  require_causal(where, recipe);
  options_ = recipe.model;
  is_fp64_ = recipe.training.dtype == "float64";
  // The tokenizer lies in the folder of the run, which a checkpoint lies in.
  std::error_code error;
  const std::string run =
      path != checkpoint_ ? path : fs::canonical(path, error).parent_path().parent_path().string();
  const std::string tokenizer = train::tokenizer_folder(run);
  if (!is_file(tokenizer + "/tokenizer.json")) return;
  tokenizer_ = tokenizer;
  add_ends(tokenizer + "/generation_config.json", ends_);
}

ModelWeights ModelFile::weights(const WeightOptions& options) const {
  const std::unique_ptr<model::Model> model = model::make_model(options_, {});
  if (!source_.empty()) {
    const std::unique_ptr<train::ModelSource> source = train::open_model_source(source_);
    return {*model,
            [&](const std::string& name, const model::GlobalRange& range, std::span<float> values) {
              source->read(name, range, values);
            },
            options};
  }
  const train::Checkpoint checkpoint(checkpoint_);
  const auto read = [&](const std::string& name, const model::GlobalRange& range,
                        std::span<float> values) {
    const std::string key = "parameters/" + name;
    if (!is_fp64_) {
      return checkpoint.read(key, io::TensorDtype::F32, range, std::as_writable_bytes(values));
    }
    std::vector<double> wide(values.size());
    checkpoint.read(key, io::TensorDtype::F64, range, std::as_writable_bytes(std::span(wide)));
    std::ranges::transform(wide, values.begin(),
                           [](double value) { return static_cast<float>(value); });
  };
  return {*model, read, options};
}

void check_length(std::string_view where, const model::ModelOptions& options, std::int64_t prompt,
                  std::int64_t most) {
  const auto refuse = [&](std::string_view what, std::int64_t nearest) {
    fail<InvalidArgument>("{}: a session of {} tokens for a model {}; at most {} are required",
                          where, most, what, nearest);
  };
  if (options.name == "gpt2" && most > options.max_seq_len) {
    refuse("of fewer learned positions (model.max_seq_len)", options.max_seq_len);
  }
  if (options.name != "llama" && options.name != "moe") return;
  const model::RopeScaling scaling = model::parse_rope_scaling(options.rope_scaling);
  if (most <= scaling.original) return;
  const bool changes = scaling.kind == model::RopeKind::Dynamic ||
                       (scaling.kind == model::RopeKind::LongRope && prompt <= scaling.original &&
                        scaling.short_factors != scaling.long_factors);
  if (changes) {
    refuse("whose rotary frequencies change with the length (model.rope_scaling)",
           scaling.original);
  }
}

}  // namespace armillary::serve
