#include "armillary/io/run_files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/file_kind.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

/// Makes the folder of a file, and the folders above it.
void make_folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) {
    fail<IoError>("write: folder {} cannot be made ({}); a folder that can be written is required",
                  excerpt(folder.string()), error.message());
  }
}

[[noreturn]] void refuse(const std::string& path, std::string_view reason) {
  fail<IoError>("write: {} cannot be written ({}); a path that can be written is required",
                excerpt(path), reason);
}

}  // namespace

void write_file(const std::string& path, std::string_view text) {
  make_folder_of(path);
  // The block ends the stream: the file is closed before it is renamed.
  const std::string temporary = path + ".tmp";
  if (const std::string_view why = kind_at(path); !why.empty()) refuse(path, why);
  if (const std::string_view why = why_no_output(temporary); !why.empty()) refuse(temporary, why);
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (!stream.flush()) refuse(temporary, std::strerror(errno));
  }
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) {
    std::error_code left;  // The reason of the first error is told.
    fs::remove(temporary, left);
    fail<IoError>("write: {} cannot be replaced ({}); a path that can be written is required",
                  excerpt(path), error.message());
  }
}

JsonLines::JsonLines(std::string path, std::string_view head) : path_(std::move(path)) {
  make_folder_of(path_);
  // Kept lines may come from this file: it is replaced at once, not emptied first.
  if (!head.empty()) write_file(path_, head);
  if (const std::string_view why = why_no_output(path_); !why.empty()) refuse(path_, why);
  stream_.open(path_, std::ios::binary | (head.empty() ? std::ios::trunc : std::ios::app));
  if (!stream_) refuse(path_, std::strerror(errno));
}

void JsonLines::write(const nlohmann::json& value) {
  const std::string line = value.dump() + '\n';
  stream_.write(line.data(), static_cast<std::streamsize>(line.size()));
  // The file could be written when it was opened, so the input was good and the run fails: exit
  // code 1.
  if (!stream_.flush()) {
    fail<Error>("write: {} cannot be written any more ({})", excerpt(path_), std::strerror(errno));
  }
}

}  // namespace armillary::io
