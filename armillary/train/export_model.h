// export_model.h: the parameters of a run as a model folder (checkpoint/model_folder.h).
#pragma once

#include <string>
#include <string_view>

#include "armillary/train/checkpoint/model_config.h"

namespace armillary::train {

/// The checkpoint that `run` is, or the newest whole one of a run. Errors begin with `verb`.
/// @throws InvalidArgument if it is neither, or has none; IoError.
std::string checkpoint_of(const std::string& run, std::string_view verb);

/// Writes the parameters of a run: of its newest whole checkpoint, all of it verified, or of the
/// checkpoint itself, if `run` is one; and the tokenizer of the run, if it has one. Returns the
/// checkpoint.
/// @throws InvalidArgument if `run` is neither, or as write_model_folder; IoError.
std::string export_model(const std::string& run, const std::string& folder, FolderFormat format);

}  // namespace armillary::train
