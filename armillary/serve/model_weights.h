// model_weights.h: the weights of a model for inference: values alone, without gradients and state,
// which ranks that are threads share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/model/global_range.h"
#include "armillary/model/model.h"
#include "armillary/model/model_options.h"

namespace armillary::serve {

/// Writes the values of a range of a parameter, row by row.
using ReadParameter = std::function<void(const std::string& name, const model::GlobalRange& range,
                                         std::span<float> values)>;

/// The weights of all units, fp32, whole on each rank. Immutable. Threads: any number may read.
class ModelWeights {
 public:
  /// @throws as `read`.
  ModelWeights(const model::Model& model, const ReadParameter& read);

  const model::Weights& of_unit(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  /// Bytes of all values, those of tied parameters once.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<model::Weights> units_;
  std::int64_t bytes_ = 0;
};

/// A model that was trained, with its weights.
struct LoadedModel {
  model::ModelOptions options;
  std::shared_ptr<const ModelWeights> weights;
};

/// The model of a run of `armillary train`, of its newest whole checkpoint, or of the checkpoint
/// itself, if `path` is one. Its values are not hashed.
/// @throws InvalidArgument if `path` is neither; IoError.
LoadedModel load_run(std::string_view where, const std::string& path);

}  // namespace armillary::serve
