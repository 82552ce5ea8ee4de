// model_folder.h: the parameters of a model as a folder that other programs read, and that a run
// may begin from: config.json, model.safetensors; or several files with an index, if they are
// large.
//
//   checkpoint --export_model--> DIR --load_parameters--> a new run (--init-from DIR)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "armillary/io/safetensors.h"
#include "armillary/model/parameter.h"
#include "armillary/train/checkpoint/model_config.h"
#include "armillary/train/store.h"

namespace armillary::train {

// Names that transformers gives to these files.
inline constexpr const char* kConfigName = "config.json";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// Bytes of a file of a folder, above which another file is begun.
inline constexpr std::int64_t kMostFileBytes = 5'000'000'000;

/// Writes config.json (model_config.h) and the parameters, which have the names that the model
/// gives them, to a folder that is not there or is empty. Everything is on the disk when it
/// returns, config.json last. @throws InvalidArgument if there is something in the folder; IoError.
void write_model_folder(const std::string& folder, FolderFormat format,
                        const nlohmann::json& config, std::vector<io::TensorBytes> parameters,
                        std::int64_t most_file_bytes = kMostFileBytes);

/// Compares a folder or a GGUF file (model_source.h) by its headers with the parameters of a model,
/// to be called before a store gives them memory: sizes of a file may be any number.
/// @throws InvalidArgument if its model is not that of the options; IoError that names file and
/// tensor, if one is missing, has another shape or dtype, or is not of this model.
void check_source(const std::string& path, const model::ModelOptions& options,
                  std::span<const model::Parameter> parameters);

/// Fills a store with the parameters of a folder or a GGUF file. Tensors of fp64 are read into a
/// store of fp64 alone. @throws as check_source.
void load_parameters(const std::string& path, const model::ModelOptions& options, Store& store);

/// The folder of a run with the tokenizer of the model that it began with.
std::string tokenizer_folder(const std::string& run);

/// Copies the files of a tokenizer from folder to folder, those that are there, over those of the
/// same names. Returns their names. @throws IoError.
std::vector<std::string> copy_tokenizer(const std::string& from, const std::string& to);

}  // namespace armillary::train
