// Reading of text: the paths of a folder are listed and sorted first, then each file is read whole
// and checked to be UTF-8. The first two bytes of a sequence tell its length and whether it is
// overlong or a surrogate, as in table 3-7 of the Unicode standard.
#include "armillary/io/text_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "armillary/core/error.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

/// All bytes of a file. @throws IoError if it cannot be read, or is not UTF-8.
std::string read_bytes(const std::string& path) {
  // Opened at its end, so that its size is the position.
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = stream ? static_cast<std::streamoff>(stream.tellg()) : -1;
  std::string bytes(static_cast<std::size_t>(std::max<std::streamoff>(size, 0)), '\0');
  stream.seekg(0);
  stream.read(bytes.data(), size);
  if (size < 0 || !stream) {
    fail<IoError>("read_text: {} cannot be read ({}); a readable text file is required", path,
                  std::strerror(errno));
  }
  if (const auto offset = first_invalid_utf8(bytes)) {
    fail<IoError>("read_text: {} is not UTF-8 at byte {}; text in UTF-8 is required", path,
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
    if (!entry->is_regular_file(dangling)) continue;
    const std::string extension = entry->path().extension().string();
    if (extensions.empty() ||
        std::find(extensions.begin(), extensions.end(), extension) != extensions.end()) {
      paths.push_back(entry->path().string());
    }
  }
  if (error) {
    fail<IoError>("read_text: folder {} cannot be read ({}); a readable folder is required", folder,
                  error.message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// The smallest input that would have been enough, for an error text.
std::string describe(const std::vector<std::string>& extensions) {
  if (extensions.empty()) return "one file that is not empty";
  return fmt::format("one {} file that is not empty", fmt::join(extensions, ", "));
}

/// Length of the well-formed sequence at `text[i]`; 0 if there is none.
std::size_t sequence_length(std::string_view text, std::size_t i) {
  // Bytes behind the end read as 0, which no sequence continues with.
  const auto byte = [&](std::size_t j) -> unsigned {
    return j < text.size() ? static_cast<unsigned char>(text[j]) : 0U;
  };
  const auto follows = [&](std::size_t j) { return (byte(j) & 0xC0U) == 0x80U; };
  // One to four bytes, by the lead byte; for some lead bytes the second one has a smaller range.
  const unsigned lead = byte(i);
  const unsigned second = byte(i + 1);
  if (lead < 0x80U) return 1;
  if (lead < 0xC2U || lead > 0xF4U || !follows(i + 1)) return 0;  // 0xC0, 0xC1: overlong
  if (lead < 0xE0U) return 2;
  if (!follows(i + 2)) return 0;
  if (lead == 0xE0U && second < 0xA0U) return 0;  // overlong
  if (lead == 0xEDU && second > 0x9FU) return 0;  // surrogate
  if (lead < 0xF0U) return 3;
  if (!follows(i + 3)) return 0;
  if (lead == 0xF0U && second < 0x90U) return 0;  // overlong
  if (lead == 0xF4U && second > 0x8FU) return 0;  // above U+10FFFF
  return 4;
}

}  // namespace

std::vector<TextFile> read_text(const std::string& path,
                                const std::vector<std::string>& extensions) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail<IoError>("read_text: '{}' does not exist; a folder or a file of text is required", path);
  }
  // A path to a file is a list of one, whatever its extension. Empty files are no documents.
  const bool folder = fs::is_directory(status);
  std::vector<TextFile> files;
  for (std::string& name : folder ? files_below(path, extensions) : std::vector{path}) {
    std::string bytes = read_bytes(name);
    if (!bytes.empty()) files.push_back({std::move(name), std::move(bytes)});
  }
  if (files.empty()) {
    fail<IoError>("read_text: {} {} holds no text; at least {} is required",
                  folder ? "folder" : "file", path,
                  folder ? describe(extensions) : std::string("one byte"));
  }
  return files;
}

std::optional<std::int64_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    if (length == 0) return static_cast<std::int64_t>(i);
    i += length;
  }
  return std::nullopt;
}

}  // namespace armillary::io
