// model_weights.h: the weights of a model for inference: values alone, without gradients and state,
// which ranks that are threads share.
//
//   run, checkpoint, model folder or GGUF file --ModelFile--> options, tokenizer
//                                                  '--weights(index of tp)--> ModelWeights
#pragma once

#include <ATen/core/Tensor.h>

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

/// The part of a model's weights that one rank has, and its dtype.
struct WeightOptions {
  int tp_index = 0;
  int tp_ranks = 1;
  /// fp32, or bf16: then matrices are bf16 and all else, such as norms, is fp32.
  at::ScalarType dtype = at::kFloat;
};

/// The weights of all units, those of a rank along tp. Immutable. Threads: any number may read.
class ModelWeights {
 public:
  /// @throws InvalidArgument as model::range_of; as `read`.
  ModelWeights(const model::Model& model, const ReadParameter& read,
               const WeightOptions& options = {});

  const model::Weights& of_unit(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  /// Bytes of all values, those of tied parameters once.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<model::Weights> units_;
  std::int64_t bytes_ = 0;
};

/// A model that is there: a run of `armillary train` (its newest whole checkpoint), a checkpoint, a
/// model folder, or a file whose name ends in `.gguf`.
class ModelFile {
 public:
  /// Reads everything but weights. Errors begin with `where`.
  /// @throws InvalidArgument if `path` is none of these, or of a model that does not predict the
  /// next token; as train::open_model_source; IoError.
  ModelFile(std::string_view where, const std::string& path);

  const model::ModelOptions& options() const { return options_; }
  /// Path of its tokenizer, for tokenizer::load_tokenizer(); empty if it has none.
  const std::string& tokenizer() const { return tokenizer_; }
  /// Tokens behind which a text ends, as config.json and generation_config.json say; none for
  /// others.
  const std::vector<std::int64_t>& ends() const { return ends_; }

  /// Reads weights; the bytes of a checkpoint are not hashed. @throws IoError; as ModelWeights.
  ModelWeights weights(const WeightOptions& options = {}) const;

 private:
  void read_run(std::string_view where, const std::string& path);

  model::ModelOptions options_;
  std::string tokenizer_;
  std::vector<std::int64_t> ends_;
  std::string source_;      ///< Path of a model folder or a GGUF file; empty:
  std::string checkpoint_;  ///< path of a checkpoint,
  bool is_fp64_ = false;    ///< whose values are fp64.
};

/// Refuses a session whose positions this model does not have: `prompt` tokens that are read,
/// `most` in all. Learned positions end; rotary frequencies of `dynamic` and `longrope` may change
/// with the length, of which keys in a cache have one. @throws InvalidArgument with the nearest
/// number of tokens.
void check_length(std::string_view where, const model::ModelOptions& options, std::int64_t prompt,
                  std::int64_t most);

}  // namespace armillary::serve
