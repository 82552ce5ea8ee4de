// model_source.h: parameters to begin with, by the names that the model gives them: a model folder
// (model_config.h), or a file whose name ends in `.gguf` (gguf_model.h).
//
//   --init-from PATH        --ModelSource--> Store                 (model_folder.h)
//   --set model.from=PATH   --ModelSource--> the keys of [model]   (train/model_from.h)
#pragma once

#include <memory>
#include <span>
#include <string>

#include "armillary/model/global_range.h"
#include "armillary/model/model_options.h"
#include "armillary/model/parameter.h"

namespace armillary::train {

/// An open source. Tensors are mapped, and read when they are asked for.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  virtual const model::ModelOptions& model() const = 0;
  /// The file that says what the model is, for errors.
  virtual const std::string& path() const = 0;
  /// Compares names and shapes of the tensors, as the headers have them, with the parameters of a
  /// model, which need no memory yet. @throws IoError that names file and tensor, if one is
  /// missing, has another shape, with the keys that ask for it, or a dtype that is never read, or
  /// is none of the model and changes what it computes.
  virtual void expect_tensors(std::span<const model::Parameter> parameters) = 0;
  /// Writes the values of a range of a parameter, row by row, as fp32: those of F16, BF16 and
  /// quantised tensors exactly. @throws IoError that names file and tensor, if it is missing, or
  /// has another shape or a dtype that is not read.
  virtual void read(const std::string& parameter, const model::GlobalRange& range,
                    std::span<float> values) = 0;
  /// Likewise as fp64, exactly, also those of F64.
  virtual void read_fp64(const std::string& parameter, const model::GlobalRange& range,
                         std::span<double> values);
};

/// @throws InvalidArgument that names the key, if the model is none of this program; IoError.
std::unique_ptr<ModelSource> open_model_source(const std::string& path);

}  // namespace armillary::train
