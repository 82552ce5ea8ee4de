// gguf_metadata.h: the keys and values in front of the tensors of a GGUF file.
//
//   "GGUF"  version u32  tensors u64  keys u64  then each key: text, type u32, value
//   text: length u64, bytes             array: type u32, count u64, values
//
// Little-endian. Format: gguf.md of https://github.com/ggml-org/ggml, versions 2 and 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace armillary::tokenizer {

/// The metadata of a file. Texts are views of its bytes, which must outlive this.
class GgufMetadata {
 public:
  /// Reads all keys; values stay where they are. `origin` names the file in errors.
  /// @throws InvalidArgument for other bytes: cut off, of another version, big-endian, a key that
  /// comes twice, an unknown type, arrays in arrays.
  GgufMetadata(std::span<const std::byte> file, std::string origin);

  /// The value of a key; nothing if there is none. @throws InvalidArgument if it has another type.
  std::optional<std::string_view> text(const std::string& key) const;
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  /// Elements of an array; empty if there is no such key.
  std::vector<std::string_view> texts(const std::string& key) const;
  std::vector<std::int64_t> integers(const std::string& key) const;
  std::vector<float> floats(const std::string& key) const;

  /// Bytes of the values of all keys that begin so, one after the other.
  std::string bytes_of(std::string_view prefix) const;

 private:
  /// A value: its type, that of its elements if it is an array, and its bytes.
  struct GgufValue {
    std::uint32_t type = 0;
    std::uint32_t element = 0;
    std::uint64_t count = 0;
    std::string_view bytes;
  };

  std::string_view take(std::uint64_t count);
  template <class Number>
  Number take_number();
  std::string_view take_text();
  void skip_values(std::uint32_t type, std::uint64_t count);
  /// The value of a key if it is an array of one of these types; null if there is no such key.
  const GgufValue* array(const std::string& key, std::span<const std::uint32_t> types) const;
  [[noreturn]] void refuse(const std::string& fault) const;
  [[noreturn]] void refuse_value(const std::string& key, std::string_view requirement) const;

  std::string origin_;
  std::string_view rest_;  ///< Bytes that are not read yet.
  std::uint64_t size_ = 0;
  std::map<std::string, GgufValue, std::less<>> values_;
};

}  // namespace armillary::tokenizer
