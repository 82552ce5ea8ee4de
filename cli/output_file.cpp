// output_file.cpp: a file is tried by opening it to append, which changes nothing of it, and what
// the trial has made is removed again.
#include "cli/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/file_kind.h"
#include "armillary/core/user_text.h"

namespace armillary::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(std::string_view verb, const std::string& path, std::string_view reason) {
  fail<IoError>("{}: cannot write {} ({}); a file that can be written is required", verb,
                quote(path), reason);
}

/// The folders of a path that are not there, the outermost first.
std::vector<fs::path> missing_folders(const std::string& path) {
  std::vector<fs::path> missing;
  std::error_code error;  // A folder that cannot be looked at is made in vain, with a reason.
  for (fs::path folder = fs::path(path).parent_path();
       !folder.empty() && folder != folder.root_path() && !fs::exists(fs::status(folder, error));
       folder = folder.parent_path()) {
    missing.insert(missing.begin(), folder);
  }
  return missing;
}

/// Opens the file as `mode` says, in folders that are made.
std::ofstream open(std::string_view verb, const std::string& path, std::ios::openmode mode) {
  if (const std::string_view why = why_no_output(path); !why.empty()) refuse(verb, path, why);
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) refuse(verb, path, error.message());
  std::ofstream file(path, std::ios::binary | mode);
  if (!file.is_open()) refuse(verb, path, std::strerror(errno));
  return file;
}

}  // namespace

void check_writable(std::string_view verb, const std::string& path) {
  std::error_code error;  // Then opening the file fails as well.
  const fs::file_status status = fs::status(path, error);
  if (fs::is_fifo(status) && why_no_output(path).empty()) return;  // A stream is opened once.
  const std::vector<fs::path> items = missing_folders(path);
  open(verb, path, std::ios::app);
  if (!fs::exists(status)) fs::remove(path, error);
  for (auto folder = items.rbegin(); folder != items.rend(); ++folder) fs::remove(*folder, error);
}

void write_file(std::string_view verb, const std::string& path, std::string_view text) {
  std::ofstream file = open(verb, path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) refuse(verb, path, std::strerror(errno));
}

}  // namespace armillary::cli
