// run_files.h: files that a run leaves behind, never half-written.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace armillary::io {

/// Writes `text` to `path` through a temporary file beside it and a rename: a reader sees the old
/// file or the new one. Folders on the way are made. @throws IoError naming the path.
void write_file(const std::string& path, std::string_view text);

/// A JSON-lines file: one object per line, each appended whole and flushed, so that a run that is
/// killed leaves only complete lines. One thread at a time.
class JsonLines {
 public:
  /// Starts an empty file; folders on the way are made. @throws IoError naming the path.
  explicit JsonLines(std::string path);

  /// @throws Error naming the path, for example when the disk is full: no fault of the input.
  void write(const nlohmann::json& value);

 private:
  std::string path_;
  std::ofstream stream_;
};

}  // namespace armillary::io
