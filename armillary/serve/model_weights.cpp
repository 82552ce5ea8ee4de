#include "armillary/serve/model_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/safetensors.h"
#include "armillary/model/registry.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/manifest.h"
#include "armillary/train/newest_checkpoint.h"
#include "armillary/train/recipe.h"

namespace armillary::serve {
namespace {

/// A model is asked for the next token as it was trained to predict it.
void require_causal(std::string_view where, const std::string& mask) {
  if (mask == "causal" || mask == "documents" || mask == "documents:within=causal") return;
  fail<InvalidArgument>(
      "{}: a model that was trained with parallelism.mask {} given; one with causal, or with "
      "documents, is required",
      where, excerpt(mask));
}

}  // namespace

ModelWeights::ModelWeights(const model::Model& model, const ReadParameter& read) {
  const std::vector<model::Parameter> parameters = model.parameters();
  std::map<std::string, at::Tensor> values;
  for (const model::Parameter& parameter : parameters) {
    const at::Tensor value = at::empty(parameter.shape, at::kFloat);
    read(parameter.name, model::whole_of(parameter.shape),
         std::span(value.mutable_data_ptr<float>(), static_cast<std::size_t>(value.numel())));
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

LoadedModel load_run(std::string_view where, const std::string& path) {
  const std::string folder = train::newest_checkpoint(where, path);
  const train::Checkpoint checkpoint(folder);
  const train::Recipe recipe =
      train::parse_saved_recipe(checkpoint.recipe(), folder + "/" + train::kRecipeName);
  require_causal(where, recipe.parallelism.mask);
  const auto read = [&](const std::string& name, const model::GlobalRange& range,
                        std::span<float> values) {
    checkpoint.read("parameters/" + name, io::TensorDtype::F32, range,
                    std::as_writable_bytes(values));
  };
  const std::unique_ptr<model::Model> model = model::make_model(recipe.model, {});
  return {recipe.model, std::make_shared<const ModelWeights>(*model, read)};
}

}  // namespace armillary::serve
