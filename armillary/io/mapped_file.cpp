// open, fstat, mmap, close: the descriptor is needed for these calls only.
#include "armillary/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "armillary/core/error.h"

namespace armillary::io {

MappedFile::MappedFile(const char* reader, const std::string& path) {
  const auto refuse = [&](const std::string& reason) {
    fail<IoError>("{}: {} cannot be read ({}); a readable file is required", reader, path, reason);
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) refuse(std::strerror(errno));
  // The mapping stays when the descriptor is closed.
  struct stat status {};
  const bool is_file = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(is_file ? status.st_size : 0);
  // An empty file cannot be mapped, and needs no mapping.
  void* const data =
      size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, /*offset=*/0);
  // close() may set errno too, so the reason is kept first.
  const std::string reason = std::strerror(errno);
  close(file);
  if (!is_file) refuse("not a file");
  if (data == MAP_FAILED) refuse(reason);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace armillary::io
