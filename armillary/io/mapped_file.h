// mapped_file.h: a file as memory, read by the operating system when it is touched, and written by
// it when that was stored to.
//
// Pages that nobody touches are never read, so opening a large file costs the same as a small one.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "armillary/core/input_file.h"

namespace armillary::io {

/// A mapping of a whole file, shared with other processes: each sees what the others store. Nothing
/// is copied. The file must not be cut short while it is mapped: touching what is gone ends the
/// process.
class MappedFile {
 public:
  /// To read. @throws IoError as InputFile if it is no regular file or cannot be read.
  MappedFile(const InputRequest& request, const std::string& path);
  /// As for `a readable file`.
  MappedFile(const char* reader, const std::string& path);
  /// Makes a file of `size` zeros, above 0, to write. Its space is allocated before it is mapped: a
  /// store to a page without space on a full disk would be a SIGBUS. Whatever is at `path` already
  /// is neither written nor followed, and a file that could not be mapped is removed.
  /// @throws std::system_error with the number of the error.
  static MappedFile create(const std::string& path, std::size_t size);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// The whole file; empty if the file is. Valid as long as this object.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// The same to store to, of a file that create() has made; of another, empty.
  std::span<std::byte> writable_bytes() { return is_writable_ ? bytes_ : std::span<std::byte>(); }

 private:
  /// Takes over a mapping that can be written.
  explicit MappedFile(std::span<std::byte> bytes) : bytes_(bytes), is_writable_(true) {}

  std::span<std::byte> bytes_;
  bool is_writable_ = false;
};

}  // namespace armillary::io
