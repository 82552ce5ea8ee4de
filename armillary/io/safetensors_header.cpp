// Header of safetensors files. Reading is strict, in the order in which errors help most: is it
// JSON, has it a name twice (other readers would take the last), is every field there and of its
// type, are the offsets those of the shape, and last, do the tensors cover the data exactly.
#include "armillary/io/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kMetadata = "__metadata__";

/// A value of a header in an error.
std::string shown(const Json& value) {
  return excerpt(json_text(value));
}

/// The JSON of a header on its way to structures; it knows the file for errors.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  /// The whole reading: fields first, then the order in the data and its cover.
  SafetensorsHeader read(std::int64_t data_bytes) const {
    const Json json = parse();
    SafetensorsHeader header;
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadata) {
        header.metadata = read_metadata(value);
      } else {
        header.tensors.push_back(read_tensor(name, value));
      }
    }
    std::ranges::stable_sort(header.tensors, {}, [](const PlacedTensor& tensor) {
      return std::pair(tensor.begin, tensor.end);
    });
    check_cover(header.tensors, data_bytes);
    return header;
  }

 private:
  /// The text as JSON, refused if a name stands twice in one object: readers would not agree on
  /// which of the two counts.
  Json parse() const {
    // The header begins with the object itself; spaces may follow it, no more.
    JsonRead read = read_json_text(text_);
    if (!read.fault && (!read.value.is_object() || text_.front() != '{')) {
      read.fault = JsonFault{"is no object", 0};
    }
    if (read.fault) {
      fail<IoError>("safetensors: {}: its header {}; {{\"name\": ..}} as JSON is required",
                    excerpt(path_), to_string(*read.fault, kLengthBytes));
    }
    return std::move(read.value);
  }

  /// Texts by key; the format allows nothing else.
  TensorMetadata read_metadata(const Json& json) const {
    TensorMetadata metadata;
    if (!json.is_object()) refuse(kMetadata, "is no object; one of texts is required");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) {
        refuse(kMetadata, fmt::format("has {}, which is no text; texts are required", quote(key)));
      }
      metadata[key] = value.get<std::string>();
    }
    return metadata;
  }

  /// One tensor: exactly the three fields, each of its type, and offsets of as many bytes as the
  /// shape has. A field that is unknown may change the meaning of the others, so it is refused.
  PlacedTensor read_tensor(const std::string& name, const Json& json) const {
    if (!json.is_object() || json.size() != 3 || !json.contains("dtype") ||
        !json.contains("shape") || !json.contains("data_offsets")) {
      refuse(name, "has other fields; dtype, shape and data_offsets are required");
    }
    PlacedTensor tensor{.info = {.name = name}};
    const auto dtype = json["dtype"].is_string()
                           ? parse_tensor_dtype(json["dtype"].get<std::string>())
                           : std::nullopt;
    if (!dtype) {
      refuse(name, fmt::format("has dtype {}; one of the format, of whole bytes, is required",
                               shown(json["dtype"])));
    }
    tensor.info.dtype = *dtype;
    tensor.info.shape = read_numbers(name, "shape", json["shape"]);
    const std::vector<std::int64_t> ends = read_numbers(name, "data_offsets", json["data_offsets"]);
    if (ends.size() != 2 || ends[0] > ends[1]) {
      refuse(name, fmt::format("has data_offsets {}; [begin, end] is required",
                               shown(json["data_offsets"])));
    }
    tensor.begin = ends[0];
    tensor.end = ends[1];
    check_bytes(tensor);
    return tensor;
  }

  /// Numbers that are at least 0 and fit in 63 bits.
  std::vector<std::int64_t> read_numbers(const std::string& name, const char* field,
                                         const Json& json) const {
    std::vector<std::int64_t> numbers;
    if (!json.is_array())
      refuse(name, fmt::format("has {} {}; a list is required", field, shown(json)));
    for (const Json& number : json) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() >> 63U != 0) {
        refuse(name, fmt::format("has {} in its {}; whole numbers from 0 are required",
                                 shown(number), field));
      }
      numbers.push_back(number.get<std::int64_t>());
    }
    return numbers;
  }

  /// The offsets are those of the shape.
  void check_bytes(const PlacedTensor& tensor) const {
    std::int64_t bytes = -1;
    try {
      bytes = tensor.info.bytes();
    } catch (const InvalidArgument&) {  // more than 2^63 bytes
    }
    if (bytes != tensor.end - tensor.begin) {
      refuse(tensor.info.name,
             fmt::format("at byte {} has {}; {}, those of its shape, are required",
                         file_offset(tensor.begin), count_of(tensor.end - tensor.begin, "byte"),
                         bytes < 0 ? "more than 2^63" : std::to_string(bytes)));
    }
  }

  /// Every byte of the data is in exactly one tensor.
  void check_cover(const std::vector<PlacedTensor>& tensors, std::int64_t data_bytes) const {
    std::int64_t covered = 0;
    for (const PlacedTensor& tensor : tensors) {
      if (tensor.end > data_bytes) {
        refuse(tensor.info.name,
               fmt::format("ends at byte {}, the file at byte {}; a file that is not cut off is "
                           "required",
                           file_offset(tensor.end), file_offset(data_bytes)));
      }
      if (tensor.begin != covered) {
        refuse(tensor.info.name,
               fmt::format("begins at byte {}, the tensors before it end at byte {}; tensors "
                           "without overlaps and gaps are required",
                           file_offset(tensor.begin), file_offset(covered)));
      }
      covered = tensor.end;
    }
    if (covered != data_bytes) {
      fail<IoError>(
          "safetensors: {} has {} behind its last tensor, from byte {}; none are required",
          excerpt(path_), count_of(data_bytes - covered, "byte"), file_offset(covered));
    }
  }

  /// Byte of the file at which byte `offset` of the data lies.
  std::int64_t file_offset(std::int64_t offset) const {
    return kLengthBytes + static_cast<std::int64_t>(text_.size()) + offset;
  }

  /// Fails with the path and the tensor in front of the text.
  [[noreturn]] void refuse(std::string_view tensor, const std::string& text) const {
    fail<IoError>("safetensors: {}: tensor {} {}", excerpt(path_), quote(tensor), text);
  }

  const std::string& path_;
  std::string_view text_;
};

}  // namespace

std::string header_text(const SafetensorsHeader& header) {
  Json json = Json::object();
  if (!header.metadata.empty()) json[std::string(kMetadata)] = header.metadata;
  for (const PlacedTensor& tensor : header.tensors) {
    json[tensor.info.name] = {{"dtype", to_string(tensor.info.dtype)},
                              {"shape", tensor.info.shape},
                              {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception&) {
    fail<InvalidArgument>("safetensors: a name or metadata is not UTF-8; UTF-8 is required");
  }
  // The length in front has 8 bytes, so a padded JSON leaves the data aligned to 8.
  text.resize(static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(text.size()), 8) * 8),
              ' ');
  return text;
}

SafetensorsHeader parse_header(const std::string& path, std::string_view text,
                               std::int64_t data_bytes) {
  return HeaderReader(path, text).read(data_bytes);
}

}  // namespace armillary::io
