// run_files.h: writers for the files that a run leaves behind. A reader never sees half of a file,
// or half of a line.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace armillary::io {

/// Writes `text` to `path`, replacing a file that is there. It writes `path`.tmp and renames it, so
/// a reader sees the old file or the new one. Missing folders of the path are made.
/// @throws IoError naming the path; the old file is then unchanged, and `path`.tmp may be left.
void write_file(const std::string& path, std::string_view text);

/// A JSON-lines file: one value per line. Each line is appended whole and flushed, so that a run
/// that is killed leaves only complete lines. Used by one thread at a time.
class JsonLines {
 public:
  /// Starts an empty file, replacing one that is there; or, given `head`, one that begins with
  /// these lines. Missing folders are made. @throws IoError naming the path.
  explicit JsonLines(std::string path, std::string_view head = {});

  /// Appends one line. @throws Error naming the path if it cannot be written any more, for example
  /// because the disk is full. This is not an IoError: the path was good when the file was opened.
  void write(const nlohmann::json& value);

 private:
  std::string path_;
  std::ofstream stream_;
};

}  // namespace armillary::io
