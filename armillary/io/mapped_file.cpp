// open, fstat, mmap, close: the descriptor is needed for these calls only.
#include "armillary/io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "armillary/core/descriptor.h"

namespace armillary::io {
namespace {

/// Reserves the space of a new file. Returns 0, or the error. The limit of the process is asked
/// first: to cross it is a signal.
int allocate(int file, std::size_t size) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) return EFBIG;
  return posix_fallocate(file, 0, static_cast<off_t>(size));
}

}  // namespace

MappedFile::MappedFile(const char* reader, const std::string& path)
    : MappedFile({.where = reader, .required = "a readable file"}, path) {}

MappedFile::MappedFile(const InputRequest& request, const std::string& path) {
  // The mapping stays when the descriptor is closed.
  const InputFile file(request, path);
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return;  // An empty file cannot be mapped, and needs no mapping.
  const auto map = [&](int how) {
    return mmap(nullptr, size, PROT_READ, how, file.descriptor(), /*offset=*/0);
  };
  void* data = map(MAP_SHARED);
  // Some file systems of users' own refuse to share.
  if (data == MAP_FAILED && errno == ENODEV) data = map(MAP_PRIVATE);
  if (data == MAP_FAILED) file.refuse(fmt::format("cannot be read ({})", std::strerror(errno)));
  bytes_ = {static_cast<std::byte*>(data), size};
}

MappedFile MappedFile::create(const std::string& path, std::size_t size) {
  // A link in the place of the file is not followed, nor a file written that another has just made.
  const Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.open()) throw std::system_error(errno, std::generic_category(), path);
  int failed = allocate(file.get(), size);
  void* data = MAP_FAILED;
  if (failed == 0) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), /*offset=*/0);
    if (data == MAP_FAILED) failed = errno;
  }
  if (failed != 0) {
    unlink(path.c_str());
    throw std::system_error(failed, std::generic_category(), path);
  }
  return MappedFile(std::span(static_cast<std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace armillary::io
