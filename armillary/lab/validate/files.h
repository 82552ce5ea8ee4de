// files.h: the files below rows/, which the build puts into the library. Internal to
// validate.
#pragma once

#include <span>
#include <string_view>

namespace armillary::validate {

/// One file: its name without the ending, and its text.
struct File {
  std::string_view name;
  std::string_view text;
};

std::span<const File> row_files();  ///< rows/*.json, in the order of their names.

}  // namespace armillary::validate
