// gguf_bytes.h: GGUF files of tests, made of their parts.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/io/gguf.h"

namespace armillary::io {

/// The bytes of a number, little-endian.
template <class T>
std::string bytes_of_number(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string gguf_text(std::string_view text) {
  return bytes_of_number<std::uint64_t>(text.size()) + std::string(text);
}

/// A file from its metadata and tensors. Members may be changed to damage it.
struct GgufBytes {
  std::uint32_t version = 3;
  std::vector<std::string> keys;     ///< Each whole: text, kind, value.
  std::vector<std::string> tensors;  ///< Each whole: text, dims, sizes, type, offset.
  std::string data;

  void add_key(std::string_view key, GgufKind kind, const std::string& value) {
    keys.push_back(gguf_text(key) + bytes_of_number(static_cast<std::uint32_t>(kind)) + value);
  }
  void add_number(std::string_view key, std::uint32_t value) {
    add_key(key, GgufKind::U32, bytes_of_number(value));
  }
  void add_float(std::string_view key, float value) {
    add_key(key, GgufKind::F32, bytes_of_number(value));
  }
  void add_text(std::string_view key, std::string_view value) {
    add_key(key, GgufKind::Text, gguf_text(value));
  }

  /// `shape` outermost first, as GgufTensor has it. Its data follow at the next multiple of 32.
  void add_tensor(std::string_view name, const std::vector<std::int64_t>& shape, std::uint32_t type,
                  const std::string& bytes) {
    data.resize((data.size() + 31) / 32 * 32, '\0');
    std::string tensor =
        gguf_text(name) + bytes_of_number(static_cast<std::uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
      tensor += bytes_of_number(static_cast<std::uint64_t>(*size));
    }
    tensors.push_back(tensor + bytes_of_number(type) + bytes_of_number<std::uint64_t>(data.size()));
    data += bytes;
  }
  void add_floats(std::string_view name, const std::vector<std::int64_t>& shape,
                  const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    add_tensor(name, shape, static_cast<std::uint32_t>(GgufType::F32), bytes);
  }

  std::string bytes() const {
    std::string all = "GGUF" + bytes_of_number(version) +
                      bytes_of_number<std::uint64_t>(tensors.size()) +
                      bytes_of_number<std::uint64_t>(keys.size());
    for (const std::string& key : keys) all += key;
    for (const std::string& tensor : tensors) all += tensor;
    all.resize((all.size() + 31) / 32 * 32, '\0');
    return all + data;
  }
};

}  // namespace armillary::io
