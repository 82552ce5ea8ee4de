#include "cli/output_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "armillary/core/error.h"

namespace armillary::cli {

void check_writable(std::string_view verb, const std::string& path) {
  std::error_code unreadable;  // Then opening the file fails as well.
  const bool exists = std::filesystem::exists(path, unreadable);
  const bool opens = std::ofstream(path, std::ios::binary | std::ios::app).is_open();
  if (!opens) fail<IoError>("{}: cannot write {}", verb, path);
  if (!exists) std::filesystem::remove(path, unreadable);
}

void write_file(std::string_view verb, const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) fail<IoError>("{}: cannot write {}", verb, path);
}

}  // namespace armillary::cli
