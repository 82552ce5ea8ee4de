// open, fstat, mmap, close: the descriptor is needed for these calls only.
#include "armillary/io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "armillary/core/input_file.h"

namespace armillary::io {

MappedFile::MappedFile(const char* reader, const std::string& path) {
  // The mapping stays when the descriptor is closed.
  const InputFile file({.where = reader, .required = "a readable file"}, path);
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return;  // An empty file cannot be mapped, and needs no mapping.
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), /*offset=*/0);
  if (data == MAP_FAILED) file.refuse(fmt::format("cannot be read ({})", std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace armillary::io
