// safetensors_header.h: the JSON of a safetensors file, between text and structures. For
// safetensors.h only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/io/safetensors.h"

namespace armillary::io {

// Errors name the byte of the file, which is 8 + length of the JSON + offset in the data.

/// A tensor of a header: its offsets count from the first byte of the data.
struct PlacedTensor {
  TensorInfo info;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A whole header: the texts of the user, and every tensor with its place.
struct SafetensorsHeader {
  TensorMetadata metadata;
  std::vector<PlacedTensor> tensors;  ///< In the order of their data.
};

/// Length of the number in front of a header.
inline constexpr std::int64_t kLengthBytes = 8;

/// The JSON, padded so that data behind it begins at a multiple of 8.
/// @throws InvalidArgument if a text is not UTF-8.
std::string header_text(const SafetensorsHeader& header);

/// Reads and checks the JSON of the file `path`, which has `data_bytes` of data behind it.
/// @throws IoError as SafetensorsFile.
SafetensorsHeader parse_header(const std::string& path, std::string_view text,
                               std::int64_t data_bytes);

}  // namespace armillary::io
