// gguf.h: files of weights as llama.cpp has them: metadata, and named tensors that may be quantised
// (gguf.md of github.com/ggml-org/ggml). Tensors are read as fp32. Without libtorch, like
// safetensors.h.
//
//   "GGUF", uint32 version 2 or 3, uint64 tensors, uint64 keys; little-endian throughout
//   keys      text, uint32 kind, value                 a text is uint64 bytes, then these
//   tensors   text, uint32 dims, uint64 sizes (innermost first), uint32 type, uint64 offset
//   data      from the next multiple of general.alignment (32) on; offsets are multiples of it too
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "armillary/io/gguf_blocks.h"
#include "armillary/io/mapped_file.h"

namespace armillary::io {

/// Kinds of values of metadata, by their numbers in files.
enum class GgufKind : std::uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,
  Text = 8,
  Array = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};

/// An array of metadata, such as the words of a tokenizer. Its values lie in the mapped file and
/// are decoded when they are asked for. Valid as long as the file is open.
class GgufArray {
 public:
  GgufArray(GgufKind kind, std::uint64_t count, std::span<const std::byte> bytes)
      : kind_(kind), count_(count), bytes_(bytes) {}

  GgufKind kind() const { return kind_; }
  std::size_t size() const { return static_cast<std::size_t>(count_); }
  std::span<const std::byte> bytes() const { return bytes_; }  ///< As they are in the file.
  /// Its texts, as they are in the file: they need not be UTF-8. Requires kind Text.
  std::vector<std::string_view> texts() const;
  /// Its numbers; a bool is 0 or 1. Requires another kind.
  std::vector<double> numbers() const;

 private:
  GgufKind kind_;
  std::uint64_t count_;
  std::span<const std::byte> bytes_;
};

/// A value of metadata. Whole numbers that are not negative are std::uint64_t, whatever their kind.
using GgufValue = std::variant<bool, std::uint64_t, std::int64_t, double, std::string, GgufArray>;

using GgufMetadata = std::map<std::string, GgufValue>;  ///< By key.

/// The metadata in the bytes of a file, of which arrays are views. @throws IoError that names
/// `path`, as GgufFile for what is in front of the tensors.
GgufMetadata read_gguf_metadata(std::span<const std::byte> file, const std::string& path);

/// The value in an error: `12`, `"llama"`, `an array of 3`.
std::string value_text(const GgufValue& value);

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::F32;
  std::vector<std::int64_t> shape = {};  ///< Outermost first, as in safetensors.h: [out, in].
};

/// A file that is open for reading. It is mapped, so tensors take no memory until they are read.
/// Threads: any number of them may read.
class GgufFile {
 public:
  /// Reads and checks everything in front of the data. @throws IoError that names the path, and the
  /// byte, key or tensor: a file that is no GGUF, of another version, or cut off; a name that is
  /// there twice; a kind or type that is not read here; rows that are not whole blocks; offsets
  /// that overlap, leave a gap or lie outside the file.
  explicit GgufFile(std::string path);

  /// As it was given.
  const std::string& path() const { return path_; }
  const GgufMetadata& metadata() const { return metadata_; }
  /// In the order of the file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Null if there is no tensor of this name.
  const GgufTensor* find(const std::string& name) const;

  /// Values [begin, begin + values.size()) of a tensor in row-major order. Cost: one pass over
  /// their blocks. @throws IoError if there is no such tensor. Requires a range inside it.
  void read(const std::string& name, std::int64_t begin, std::span<float> values) const;

 private:
  struct GgufPlace {
    std::size_t index = 0;
    std::size_t begin = 0;  ///< First byte in the file.
  };

  void read_front();

  std::string path_;
  MappedFile file_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, GgufPlace> places_;
};

}  // namespace armillary::io
