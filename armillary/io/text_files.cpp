// Reading of text: the paths of a folder are listed and sorted first, then each file is read whole
// and checked to be UTF-8.
#include "armillary/io/text_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/file_kind.h"
#include "armillary/core/input_file.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

/// All bytes of a file. @throws IoError if it cannot be read, or is not UTF-8.
std::string read_bytes(const std::string& path) {
  const InputFile file({.where = "read_text", .required = "a folder or a file of text"}, path);
  std::string bytes = file.read();
  if (const auto offset = first_invalid_utf8(bytes)) {
    fail<IoError>("read_text: {} is not UTF-8 at byte {}; text in UTF-8 is required", excerpt(path),
                  *offset);
  }
  return bytes;
}

/// Paths of all files below a folder that have one of the extensions, sorted bytewise.
std::vector<std::string> files_below(const std::string& folder,
                                     const std::vector<std::string>& extensions) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code dangling;  // A link to nothing is skipped, not an error.
    if (!entry->exists(dangling) || entry->is_directory(dangling)) continue;
    const std::string extension = entry->path().extension().string();
    const bool is_text =
        extensions.empty() || std::ranges::find(extensions, extension) != extensions.end();
    if (!is_text) continue;
    paths.push_back(entry->path().string());
    if (const std::string_view kind = kind_at(paths.back()); !kind.empty()) {
      fail<IoError>("read_text: {} {}; a file of text is required", quote(paths.back()), kind);
    }
  }
  if (error) {
    fail<IoError>("read_text: folder {} cannot be read ({}); a readable folder is required",
                  excerpt(folder), error.message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// The smallest input that would have been enough, for an error text.
std::string describe(const std::vector<std::string>& extensions) {
  if (extensions.empty()) return "one file that is not empty";
  return fmt::format("one {} file that is not empty", fmt::join(extensions, ", "));
}

}  // namespace

std::vector<std::string> text_paths(const std::string& path,
                                    const std::vector<std::string>& extensions) {
  std::error_code error;  // An error means that it is no folder: then reading it fails.
  // A path to a file is a list of one, whatever its extension.
  return fs::is_directory(path, error) ? files_below(path, extensions) : std::vector{path};
}

std::vector<TextFile> read_text(const std::string& path,
                                const std::vector<std::string>& extensions) {
  std::vector<TextFile> files;  // Empty files are no documents.
  for (std::string& name : text_paths(path, extensions)) {
    std::string bytes = read_bytes(name);
    if (!bytes.empty()) files.push_back({std::move(name), std::move(bytes)});
  }
  if (files.empty()) {
    std::error_code error;
    const bool folder = fs::is_directory(path, error);
    fail<IoError>("read_text: {} {} holds no text; at least {} is required",
                  folder ? "folder" : "file", excerpt(path),
                  folder ? describe(extensions) : std::string("one byte"));
  }
  return files;
}

}  // namespace armillary::io
