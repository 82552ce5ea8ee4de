// safetensors.h: named tensors in a file, in the format of
// https://github.com/huggingface/safetensors. It is written and read here without that library, and
// without libtorch: a tensor is a span of bytes.
//
//   8 bytes   N, little-endian
//   N bytes   JSON, padded with spaces so that the data begins at a multiple of 8:
//             {"__metadata__": {"key": "text"},
//              "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..}
//   data      row-major, little-endian, without gaps; offsets count from its first byte
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/io/file_system.h"
#include "armillary/io/mapped_file.h"

namespace armillary::io {

/// Dtypes of the format whose elements are whole bytes.
enum class TensorDtype : std::uint8_t {
  Bool,
  U8,
  I8,
  F8E5M2,
  F8E4M3,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  F64,
  I64,
  U64,
};

std::string_view to_string(TensorDtype dtype);                         ///< "F32", as in the header.
std::optional<TensorDtype> parse_tensor_dtype(std::string_view name);  ///< Nothing if not known.
std::int64_t bytes_of(TensorDtype dtype);                              ///< Bytes of an element.

/// Name, dtype and shape of a tensor. A shape without dims is a scalar.
struct TensorInfo {
  std::string name;
  TensorDtype dtype = TensorDtype::F32;
  std::vector<std::int64_t> shape;

  /// @throws InvalidArgument if the product does not fit in 64 bits.
  std::int64_t bytes() const;
};

/// A tensor and its values, which belong to the caller.
struct TensorBytes {
  TensorInfo info;
  std::span<const std::byte> bytes;
};

/// Texts of the user under "__metadata__", such as {"format": "pt"}; no order is kept.
using TensorMetadata = std::map<std::string, std::string>;

/// Writes a file and syncs it; its folder is not synced. Tensors lie in the order given, those of
/// larger elements first, so that each is aligned to its elements. Values are streamed from the
/// caller's memory: nothing is copied.
/// @throws InvalidArgument if a name is given twice or is "__metadata__", a name is not UTF-8, or
/// a span has not the bytes of its shape; IoError as the file system.
void write_safetensors(FileSystem& files, const std::string& path, std::vector<TensorBytes> tensors,
                       const TensorMetadata& metadata);

/// A file that is open for reading. Its tensors are mapped, so they take no memory until they are
/// touched. Threads: any number of them may read.
class SafetensorsFile {
 public:
  /// Reads the header and checks all of it. @throws IoError that names the path, the tensor and the
  /// byte of the file: a file that is cut off or too long; a header that is no JSON or has a name
  /// twice; an unknown dtype; offsets that overlap, leave a gap, lie outside the file or are not
  /// those of the shape.
  explicit SafetensorsFile(std::string path);

  /// As it was given.
  const std::string& path() const { return path_; }
  /// In the order in which they lie in the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Empty if the header has none.
  const TensorMetadata& metadata() const { return metadata_; }

  /// @throws IoError if there is no tensor of this name.
  const TensorInfo& info(const std::string& name) const;
  /// Values of a tensor, valid as long as this object. @throws IoError likewise.
  std::span<const std::byte> bytes(const std::string& name) const;
  /// First byte of its values in the file. @throws IoError likewise.
  std::int64_t offset(const std::string& name) const;

  /// Everything in front of the data: the 8 bytes of the length, the JSON and its padding.
  std::span<const std::byte> header() const;

 private:
  /// Index in tensors_, and first byte in the file.
  struct TensorPlace {
    std::size_t index = 0;
    std::int64_t offset = 0;
  };
  /// The lookups by name are made of it. @throws IoError if there is no such tensor.
  const TensorPlace& place(const std::string& name) const;
  /// Reads and checks the header; fills the metadata, the tensors and their places.
  void read_header();

  std::string path_;
  MappedFile file_;
  std::int64_t data_begin_ = 0;
  TensorMetadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, TensorPlace> places_;
};

}  // namespace armillary::io
