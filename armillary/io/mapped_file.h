// mapped_file.h: a file as memory, read by the operating system when it is touched.
//
// Pages that nobody touches are never read, so opening a large file costs the same as a small one.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "armillary/core/input_file.h"

namespace armillary::io {

/// A read-only mapping of a whole file, which shows what other processes store there. Nothing is
/// copied. The file must not be cut short while it is mapped: touching what is gone ends the
/// process.
class MappedFile {
 public:
  /// @throws IoError as InputFile if it is no regular file or cannot be read.
  MappedFile(const InputRequest& request, const std::string& path);
  /// As for `a readable file`.
  MappedFile(const char* reader, const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// The whole file; empty if the file is. Valid as long as this object.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace armillary::io
