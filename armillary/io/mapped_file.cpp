// open, fstat, mmap, close: the descriptor is needed for these calls only.
#include "armillary/io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace armillary::io {

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
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace armillary::io
