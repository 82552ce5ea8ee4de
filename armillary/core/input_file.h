// input_file.h: the one way in which files of users are opened for reading.
//
// A path of a user may be anything: a folder, a pipe that nobody writes to, a device without an
// end. Only a regular file is opened, and opening never waits: what is open is looked at, not the
// path, which may become something else in between.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "armillary/core/descriptor.h"

namespace armillary {

/// A request for an input file, in the words of its errors: `WHERE: 'PATH' is a folder; REQUIRED is
/// required`.
struct InputRequest {
  std::string_view where;     ///< "cluster"
  std::string_view required;  ///< "a TOML file"
  /// A larger file is refused before it is read, such as a disk image named as a recipe.
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();
};

/// A regular file, open for reading.
class InputFile {
 public:
  /// Follows links. @throws IoError that says what is at the path if it is no regular file, if
  /// there is nothing, or if it may not be read or is too large.
  InputFile(const InputRequest& request, std::string path);

  const std::string& path() const { return path_; }
  /// Open as long as this object.
  int descriptor() const { return file_.get(); }
  /// The size when the file was opened.
  std::int64_t size() const { return size_; }
  /// Everything from where the descriptor stands to the end, also of a file that grows meanwhile or
  /// states no size, as those of /proc. @throws IoError if the system refuses, or it gets too large
  std::string read() const;
  /// Fails with the words of the request. `value` is what is wrong with the file: "is empty".
  [[noreturn]] void refuse(std::string_view value) const;

 private:
  InputRequest request_;  ///< Its views are literals, or outlive the object.
  std::string path_;
  Descriptor file_;
  std::int64_t size_ = 0;
};

/// The contents of a regular file. @throws IoError as InputFile.
std::string read_input(const InputRequest& request, const std::string& path);

/// Sizes that no recipe, cluster or configuration written by people reaches.
inline constexpr std::int64_t kMostConfigurationBytes = 16 << 20;

}  // namespace armillary
