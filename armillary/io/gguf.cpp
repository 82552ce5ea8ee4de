// gguf.cpp: a cursor reads the front of the file, and refuses whatever goes beyond the end: counts
// and lengths of a damaged file may be any number, so nothing is allocated by them.
#include "armillary/io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

// Numbers are copied as they are in memory.
static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kMostDims = 4;
constexpr std::uint64_t kAlignment = 32;  ///< Unless general.alignment says another.
constexpr const char* kAlignmentKey = "general.alignment";

/// Bytes of a value of a kind; 0 for texts and arrays.
std::size_t kind_bytes(GgufKind kind) {
  switch (kind) {
    case GgufKind::U8:
    case GgufKind::I8:
    case GgufKind::Bool:
      return 1;
    case GgufKind::U16:
    case GgufKind::I16:
      return 2;
    case GgufKind::U32:
    case GgufKind::I32:
    case GgufKind::F32:
      return 4;
    case GgufKind::U64:
    case GgufKind::I64:
    case GgufKind::F64:
      return 8;
    case GgufKind::Text:
    case GgufKind::Array:
      break;
  }
  return 0;
}

template <class T>
T value_at(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// A number of `kind`, which is neither text nor array.
GgufValue number_at(GgufKind kind, const std::byte* bytes) {
  const auto whole = [](auto value) -> GgufValue {
    if (value >= 0) return static_cast<std::uint64_t>(value);
    return static_cast<std::int64_t>(value);
  };
  switch (kind) {
    case GgufKind::U8:
      return whole(value_at<std::uint8_t>(bytes));
    case GgufKind::I8:
      return whole(value_at<std::int8_t>(bytes));
    case GgufKind::U16:
      return whole(value_at<std::uint16_t>(bytes));
    case GgufKind::I16:
      return whole(value_at<std::int16_t>(bytes));
    case GgufKind::U32:
      return whole(value_at<std::uint32_t>(bytes));
    case GgufKind::I32:
      return whole(value_at<std::int32_t>(bytes));
    case GgufKind::F32:
      return double{value_at<float>(bytes)};
    case GgufKind::Bool:
      return value_at<std::uint8_t>(bytes) != 0;
    case GgufKind::U64:
      return whole(value_at<std::uint64_t>(bytes));
    case GgufKind::I64:
      return whole(value_at<std::int64_t>(bytes));
    case GgufKind::F64:
      return value_at<double>(bytes);
    case GgufKind::Text:
    case GgufKind::Array:
      break;
  }
  fail<InternalError>("a number of a kind that is none");
}

/// `x` rounded up to a multiple of a power of two; nothing above 2^63 is given to it.
std::uint64_t aligned(std::uint64_t x, std::uint64_t alignment) {
  return (x + alignment - 1) / alignment * alignment;
}

/// The front of a file, read from its begin on.
class FrontReader {
 public:
  FrontReader(const std::string& path, std::span<const std::byte> bytes)
      : path_(path), bytes_(bytes) {}

  std::size_t at() const { return at_; }

  /// The next bytes. @throws IoError if the file ends before.
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail<IoError>("gguf: {} ends at byte {}; {} bytes from byte {} on are required",
                    excerpt(path_), bytes_.size(), count, at_);
    }
    const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }

  template <class T>
  T number() {
    return value_at<T>(take(sizeof(T)).data());
  }

  std::string_view text() {
    const auto bytes = take(number<std::uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  GgufKind kind(std::string_view key) {
    const auto number = this->number<std::uint32_t>();
    if (number > static_cast<std::uint32_t>(GgufKind::F64)) {
      fail<IoError>("gguf: {}: key {} is of kind {} at byte {}; 0 to 12 is required",
                    excerpt(path_), quote(key), number, at_ - sizeof number);
    }
    return static_cast<GgufKind>(number);
  }

  GgufValue value(std::string_view key) {
    const GgufKind kind = this->kind(key);
    if (kind == GgufKind::Text) return std::string(text());
    if (kind == GgufKind::Array) return array(key);
    return number_at(kind, take(kind_bytes(kind)).data());
  }

 private:
  GgufArray array(std::string_view key) {
    const GgufKind kind = this->kind(key);
    if (kind == GgufKind::Array) {
      fail<IoError>("gguf: {}: key {} is an array of arrays; one of numbers or texts is required",
                    excerpt(path_), quote(key));
    }
    const auto count = number<std::uint64_t>();
    const std::size_t begin = at_;
    if (kind == GgufKind::Text) {
      for (std::uint64_t i = 0; i < count; ++i) text();
    } else {
      // As many bytes as the file has are enough to be refused: the product may overflow.
      take(std::min<std::uint64_t>(count, bytes_.size()) * kind_bytes(kind));
    }
    return {kind, count, bytes_.subspan(begin, at_ - begin)};
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

/// Number of values; nothing if it is 2^63 or more.
std::optional<std::int64_t> values_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return count;
}

/// Bytes of a tensor. @throws IoError unless rows are whole blocks, or above 2^63.
std::uint64_t tensor_bytes(const std::string& path, const GgufTensor& tensor) {
  const GgufBlock block = block_of(tensor.type);
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % block.values != 0) {
    fail<IoError>(
        "gguf: {}: tensor {} has rows of {}; a multiple of {}, a block of {}, is required",
        excerpt(path), quote(tensor.name), row, block.values,
        gguf_type_name(static_cast<std::uint32_t>(tensor.type)));
  }
  const std::optional<std::int64_t> count = values_of(tensor.shape);
  if (!count ||
      *count / block.values > std::numeric_limits<std::int64_t>::max() / 2 / block.bytes) {
    fail<IoError>("gguf: {}: tensor {} has 2^62 bytes or more; fewer are required", excerpt(path),
                  quote(tensor.name));
  }
  return static_cast<std::uint64_t>(*count / block.values * block.bytes);
}

/// Reads the head and all keys. Returns the number of tensors.
std::uint64_t read_keys(FrontReader& front, std::span<const std::byte> all, const std::string& path,
                        GgufMetadata& metadata) {
  constexpr std::array kMagic{'G', 'G', 'U', 'F'};
  if (all.size() < kMagic.size() || std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0) {
    fail<IoError>("gguf: {} does not begin with GGUF; a file of llama.cpp is required",
                  excerpt(path));
  }
  front.take(kMagic.size());
  const auto version = front.number<std::uint32_t>();
  if (version != 2 && version != 3) {
    fail<IoError>("gguf: {} is of version {}; 2 or 3, little-endian, is required", excerpt(path),
                  version);
  }
  const auto tensors = front.number<std::uint64_t>();
  const auto keys = front.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < keys; ++i) {
    std::string key(front.text());
    GgufValue value = front.value(key);
    if (metadata.contains(key)) {
      fail<IoError>("gguf: {} has key {} twice; once is required", excerpt(path), quote(key));
    }
    metadata.emplace(std::move(key), std::move(value));
  }
  return tensors;
}

/// Name, shape and type of the next tensor; its offset stays to be read.
GgufTensor read_tensor(FrontReader& front, const std::string& path) {
  GgufTensor tensor{.name = std::string(front.text())};
  const auto dims = front.number<std::uint32_t>();
  if (dims > kMostDims) {
    fail<IoError>("gguf: {}: tensor {} has {} dims; at most {} are required", excerpt(path),
                  quote(tensor.name), dims, kMostDims);
  }
  for (std::uint32_t i = 0; i < dims; ++i) {
    const auto size = front.number<std::uint64_t>();
    if (size >> 62U != 0) {
      fail<IoError>("gguf: {}: tensor {} has a size of {}; below 2^62 is required", excerpt(path),
                    quote(tensor.name), size);
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto number = front.number<std::uint32_t>();
  const std::optional<GgufType> type = parse_gguf_type(number);
  if (!type) {
    fail<IoError>("gguf: {}: tensor {} is {}; {} is required", excerpt(path), quote(tensor.name),
                  gguf_type_name(number), gguf_type_names());
  }
  tensor.type = *type;
  return tensor;
}

/// @throws IoError unless it is a power of two below 2^31.
std::uint64_t alignment_of(const std::string& path,
                           const std::map<std::string, GgufValue>& metadata) {
  const auto entry = metadata.find(kAlignmentKey);
  if (entry == metadata.end()) return kAlignment;
  const auto* const value = std::get_if<std::uint64_t>(&entry->second);
  if (value == nullptr || !std::has_single_bit(*value) || *value >> 31U != 0) {
    fail<IoError>("gguf: {} has {} = {}; a power of two below 2^31 is required", excerpt(path),
                  kAlignmentKey, value_text(entry->second));
  }
  return *value;
}

}  // namespace

GgufMetadata read_gguf_metadata(std::span<const std::byte> file, const std::string& path) {
  FrontReader front(path, file);
  GgufMetadata metadata;
  read_keys(front, file, path, metadata);
  return metadata;
}

std::string value_text(const GgufValue& value) {
  return std::visit(
      [](const auto& of) -> std::string {
        using Value = std::decay_t<decltype(of)>;
        if constexpr (std::is_same_v<Value, GgufArray>) {
          return fmt::format("an array of {}", of.size());
        } else if constexpr (std::is_same_v<Value, std::string>) {
          return quote(of);
        } else {
          return fmt::format("{}", of);
        }
      },
      value);
}

// The reader has checked that everything lies inside.
std::vector<std::string_view> GgufArray::texts() const {
  ARMILLARY_CHECK(kind_ == GgufKind::Text);
  std::vector<std::string_view> texts;
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < count_; ++i) {
    const auto length = value_at<std::uint64_t>(bytes_.data() + at);
    at += sizeof length;
    texts.emplace_back(reinterpret_cast<const char*>(bytes_.data()) + at,
                       static_cast<std::size_t>(length));
    at += static_cast<std::size_t>(length);
  }
  return texts;
}

std::vector<double> GgufArray::numbers() const {
  ARMILLARY_CHECK(kind_ != GgufKind::Text);
  std::vector<double> numbers;
  for (std::uint64_t i = 0; i < count_; ++i) {
    const GgufValue value = number_at(kind_, bytes_.data() + i * kind_bytes(kind_));
    numbers.push_back(std::visit(
        [](const auto& of) -> double {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(of)>>) {
            return static_cast<double>(of);
          } else {
            ARMILLARY_CHECK(false);
          }
        },
        value));
  }
  return numbers;
}

GgufFile::GgufFile(std::string path) : path_(std::move(path)), file_("gguf", path_) {
  read_front();
}

void GgufFile::read_front() {
  const std::span<const std::byte> all = file_.bytes();
  FrontReader front(path_, all);
  const std::uint64_t tensors = read_keys(front, all, path_, metadata_);
  // Tensors follow one another, each at the next multiple of the alignment.
  const std::uint64_t alignment = alignment_of(path_, metadata_);
  std::uint64_t end = 0;  // of the tensors so far, from the first byte of the data
  for (std::uint64_t i = 0; i < tensors; ++i) {
    GgufTensor tensor = read_tensor(front, path_);
    const auto offset = front.number<std::uint64_t>();
    const std::uint64_t required = aligned(end, alignment);
    if (offset != required) {
      fail<IoError>(
          "gguf: {}: tensor {} begins at byte {} of the data; {}, behind those before it, "
          "is required",
          excerpt(path_), quote(tensor.name), offset, required);
    }
    end = offset + tensor_bytes(path_, tensor);
    if (end > all.size()) {
      fail<IoError>(
          "gguf: {}: tensor {} ends at byte {} of the data, the file at byte {}; a file "
          "that is not cut off is required",
          excerpt(path_), quote(tensor.name), end, all.size());
    }
    const GgufPlace place{tensors_.size(), static_cast<std::size_t>(offset)};
    if (!places_.emplace(tensor.name, place).second) {
      fail<IoError>("gguf: {} has tensor {} twice; once is required", excerpt(path_),
                    quote(tensor.name));
    }
    tensors_.push_back(std::move(tensor));
  }
  // Offsets from the first byte of the file. Behind the last tensor there may be padding.
  const std::uint64_t data = aligned(front.at(), alignment);
  const std::uint64_t most = aligned(data + end, alignment);
  if (tensors > 0 && (data + end > all.size() || most < all.size())) {
    fail<IoError>(
        "gguf: {} ends at byte {}, its tensors at byte {}; a file that ends with them is "
        "required",
        excerpt(path_), all.size(), data + end);
  }
  for (auto& [name, place] : places_) place.begin += static_cast<std::size_t>(data);
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto entry = places_.find(name);
  return entry == places_.end() ? nullptr : &tensors_[entry->second.index];
}

void GgufFile::read(const std::string& name, std::int64_t begin, std::span<float> values) const {
  const auto entry = places_.find(name);
  if (entry == places_.end()) {
    fail<IoError>("gguf: {} has no tensor {}; a file with it is required", excerpt(path_),
                  quote(name));
  }
  const GgufTensor& tensor = tensors_[entry->second.index];
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t all = *values_of(tensor.shape);
  ARMILLARY_CHECK(begin >= 0 && begin <= all && count <= all - begin);
  const GgufBlock block = block_of(tensor.type);
  const std::byte* const first = file_.bytes().data() + entry->second.begin;
  std::array<float, kMostBlockValues> whole{};
  for (std::int64_t written = 0; written < count;) {
    const std::int64_t inside =
        (begin + written) % block.values;  // where the range enters the block
    const std::byte* const bytes = first + (begin + written) / block.values * block.bytes;
    const std::int64_t taken = std::min(block.values - inside, count - written);
    if (taken == block.values) {
      dequantize_block(tensor.type, bytes, values.data() + written);
    } else {
      dequantize_block(tensor.type, bytes, whole.data());
      std::copy_n(whole.data() + inside, taken, values.data() + written);
    }
    written += taken;
  }
}

}  // namespace armillary::io
