// model_folder.h: the parameters of a model as a folder that other programs read, and that a run
// may begin from: config.json, model.safetensors; or several files with an index, if they are
// large.
//
//   checkpoint --export_model--> DIR --load_parameters--> a new run (--init-from DIR)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/io/safetensors.h"
#include "armillary/train/checkpoint/model_config.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// Bytes of a file of a folder, above which another file is begun.
inline constexpr std::int64_t kMostFileBytes = 5'000'000'000;

/// Writes config.json (model_config.h) and the parameters, which have the names that the model
/// gives them, to a folder that is not there or is empty. Everything is on the disk when it
/// returns, config.json last. @throws InvalidArgument if there is something in the folder; IoError.
void write_model_folder(const std::string& folder, FolderFormat format,
                        const nlohmann::json& config, std::vector<io::TensorBytes> parameters,
                        std::int64_t most_file_bytes = kMostFileBytes);

/// Fills a store with the parameters of a folder, which must be fp32, or fp64 for a store of fp64,
/// which takes both. @throws InvalidArgument if config.json is not of this model; IoError that
/// names file and tensor, if one is missing, has another shape or dtype, or is not of this model.
void load_parameters(const std::string& folder, const model::ModelOptions& options, Store& store);

}  // namespace armillary::train
